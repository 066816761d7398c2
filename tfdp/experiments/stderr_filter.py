"""A program that copies its input to stderr without what TensorFlow's C++ code says at every start.

TF_CPP_MIN_LOG_LEVEL does not silence the messages that TensorFlow logs before its own start, such as
those on oneDNN and on a missing GPU. This program, to which `console.quiet_tensorflow` gives the
stderr of the process, leaves them out, and lets everything else through.
"""

import re
import sys

# Information and warnings in the format of C++ code before `absl::InitializeLog`, the line that
# announces this format, and the errors that say no more than that there is no GPU, or that a library of
# the GPU was named twice.
_NOISE = re.compile(
    rb"[IW]0000 00:00:\d"
    rb"|WARNING: All log messages before absl::InitializeLog"
    rb"|E0000 00:00:\d.*(failed call to cuInit|Unable to register cu\w+ (factory|plugin))"
    rb"|To enable the following instructions: "
)


def main() -> None:
    """Copies stdin to stderr, line by line."""
    for line in sys.stdin.buffer:
        if not _NOISE.match(line):
            sys.stderr.buffer.write(line)
            sys.stderr.buffer.flush()


if __name__ == "__main__":
    main()
