"""The models, lot sizes, frameworks and ways to train that are measured."""

import dataclasses
from pathlib import Path

HERE = Path(__file__).parent
MODELS = (
    "mlp",
    "tutorial_cnn",
    "lenet5",
    "cifar_tutorial",
    "resnet18",
    "bilstm",
    "transformer",
)
# Realistic models, which are measured with and without tfdp only.
REALISTIC = (
    "mobilenet_v2",
    "efficientnet_b0",
    "u_net",
    "lstm",
    "encoder",
    "encoder_lora",
    "bert_base",
    "bert_base_lora",
    "bert_base_head",
)
LOTS = (64, 256, 1024)
# Goals: the largest ratio of a private step to a plain one, on a quiet machine, in lots of 64 and 256.
# A convolution's kernel gradient that is not kept for each example is computed twice: a third of a
# plain step.
GOALS = dict.fromkeys((*MODELS, *REALISTIC), 1.1)
GOALS |= {"tutorial_cnn": 1.3, "lenet5": 1.3, "cifar_tutorial": 1.25, "resnet18": 1.2}
GOALS |= dict.fromkeys(("mobilenet_v2", "efficientnet_b0", "u_net"), 1.35)
# Noise on large tables of words takes as long for a small lot as for a large one.
GOALS |= {"lstm": 1.2, "bert_base": 1.15, "bert_base_head": 1.15}


@dataclasses.dataclass(frozen=True)
class Family:
    """A framework with its environment.

    Attributes:
        name: Name of the framework and of its requirements file.
        baseline: Name of the subject that trains without privacy.
        program: Name of the measured program in `peers/`, which runs as a separate process.
        own_environment: Whether the program runs in a separate virtual environment. tfdp's program runs
            in the environment of the benchmark command.
        python: The Python version that the framework needs. None for any version.
    """

    name: str
    baseline: str
    program: str
    own_environment: bool = True
    python: str | None = None

    @property
    def path(self) -> Path:
        """The file of the measured program."""
        return HERE / "peers" / self.program

    @property
    def requirements(self) -> Path:
        """The pip requirements file of the virtual environment."""
        return HERE / "requirements" / f"{self.name}.txt"


FAMILIES = {
    family.name: family
    for family in (
        Family("tfdp", "keras_tf", "run_tfdp.py", own_environment=False),
        Family("tfdp_xla", "keras_tf_xla", "run_tfdp.py", own_environment=False),
        Family("tf_privacy", "keras2_tf", "run_tf_privacy.py", python="3.11"),
        Family("opacus", "pytorch", "run_opacus.py"),
        Family("jax_privacy", "keras_jax", "run_jax_privacy.py"),
    )
}
# The private subjects that --peers can name, with the names of their families.
PEERS = {
    "tfdp": "tfdp",
    "tfdp_vectorized": "tfdp",
    "tfdp_backup": "tfdp",
    "tfdp_microbatches": "tfdp",
    "tfdp_vectorized_microbatches": "tfdp",
    "tfdp_xla": "tfdp_xla",
    "tf_privacy": "tf_privacy",
    "tf_privacy_fast": "tf_privacy",
    "tf_privacy_vectorized": "tf_privacy",
    "opacus_hooks": "opacus",
    "opacus_ghost": "opacus",
    "jax_privacy": "jax_privacy",
}
LABELS = {
    "keras_tf": "Keras 3 on TensorFlow, no privacy",
    "tfdp": "tfdp",
    "tfdp_vectorized": "tfdp, exact engine (vectorized_map)",
    "tfdp_backup": "tfdp, with backups",
    "tfdp_microbatches": "tfdp, microbatches of 4",
    "tfdp_vectorized_microbatches": "tfdp, exact engine, microbatches of 4",
    "keras_tf_xla": "Keras 3 on TensorFlow, no privacy, XLA",
    "tfdp_xla": "tfdp, XLA",
    "keras2_tf": "Keras 2 on TensorFlow 2.15, no privacy",
    "tf_privacy": "TensorFlow Privacy, DPModel",
    "tf_privacy_fast": "TensorFlow Privacy, fast clipping",
    "tf_privacy_vectorized": "TensorFlow Privacy, vectorized optimizer",
    "pytorch": "PyTorch, no privacy",
    "opacus_hooks": "Opacus, hooks",
    "opacus_ghost": "Opacus, ghost clipping",
    "keras_jax": "Keras 3 on JAX, no privacy",
    "jax_privacy": "jax-privacy, Keras API",
}


def family_of(subject: str) -> Family:
    """Returns the family of a peer or of a baseline."""
    baselines = {family.baseline: name for name, family in FAMILIES.items()}
    return FAMILIES[(PEERS | baselines)[subject]]


def groups(peers: list[str]) -> list[list[str]]:
    """Returns for each family its baseline and its chosen peers, which are measured consecutively."""
    grouped = {}
    for peer in peers:
        family = FAMILIES[PEERS[peer]]
        grouped.setdefault(family.name, [family.baseline]).append(peer)
    return list(grouped.values())
