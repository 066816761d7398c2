#!/usr/bin/env bash
# Everything that a GPU is asked for, one part after the other:
#
#     bash benchmarks/gpu.sh FOLDER [selftest] [tests] [steps] [training]     (all parts by default)
#
# Each part writes its files into FOLDER and ends after its minutes (SELFTEST_MINUTES, TESTS_MINUTES,
# STEPS_MINUTES, TRAINING_MINUTES). Steps go on where they were when FOLDER has a gpu.json. Trainings
# read $TFDS_DATA_DIR. Exit code 1 if a part failed.
set -uo pipefail
cd "$(dirname "$0")/.."
out=$(realpath -m "${1:?expected the folder to write into}")
shift
mkdir -p "$out"
export TF_CPP_MIN_LOG_LEVEL=3 PYTHONUNBUFFERED=1
failed=0

part() { # part NAME MINUTES COMMAND...
    local name=$1 minutes=$2 begin=$SECONDS
    shift 2
    echo "== $name: $*"
    timeout --kill-after=20 "${minutes}m" "$@" >"$out/$name.log" 2>&1
    local code=$?
    echo "$name: exit code $code after $((SECONDS - begin)) s" | tee -a "$out/summary.txt"
    tail -n 25 "$out/$name.log"
    [ $code -eq 0 ] || failed=1
}

selftest() { part selftest "${SELFTEST_MINUTES:-5}" python3 -m tfdp.selftest; }

# What needs no data and depends on the device, in the order of its weight.
tests() {
    part tests "${TESTS_MINUTES:-9}" python3 -m pytest -q -x --maxfail=40 -n "${TESTS_PROCESSES:-8}" \
        tests/test_gpu.py tests/gradients tests/noise tests/optimizers tests/layers
}

steps() {
    part steps "$((${STEPS_MINUTES:-9} + 1))" python3 -m benchmarks --device=gpu --repeats="${ROUNDS:-1}" \
        --seconds=1 --steps=20 --timeout=240 --memory_gib=100 --minutes="${STEPS_MINUTES:-9}" \
        --json="$out/gpu.json"
}

training() {
    local seed
    for seed in 0 1 2; do
        part "mnist_$seed" "${TRAINING_MINUTES:-2}" python3 train.py --flagfile=flags/papers/mnist_dpsgd.cfg \
            --sweep= --epsilon=3 --learning_rate=1 --physical_batch_size= --seed="$seed" \
            --model_dir="$out/mnist_$seed"
        part "cifar10_$seed" "${TRAINING_MINUTES:-2}" python3 train.py --dataset=cifar10 --mechanism=dpsgd \
            --epsilon=8 --delta=1e-5 --model=cifar_tutorial --normalization=layer --batch_size=2048 \
            --epochs=20 --sampling=poisson --learning_rate=0.5 --momentum=0.9 --l2_norm_clip=1.0 \
            --seed="$seed" --model_dir="$out/cifar10_$seed"
    done
}

if [ $# -eq 0 ]; then set -- selftest tests steps training; fi
for name in "$@"; do
    case $name in
    selftest | tests | steps | training) "$name" ;;
    *) echo "expected selftest, tests, steps or training; found $name" >&2; exit 2 ;;
    esac
done
exit $failed
