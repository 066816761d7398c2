#!/usr/bin/env bash
# Everything that a GPU is asked for, one part after the other:
#
#     bash benchmarks/gpu.sh FOLDER [selftest] [tests] [profile] [steps] [training]     (all by default)
#
# Each part writes its files into FOLDER and ends after its minutes (SELFTEST_MINUTES, TESTS_MINUTES,
# PROFILE_MINUTES, STEPS_MINUTES, TRAINING_MINUTES). Steps go on where they were when FOLDER has a
# gpu.json. Trainings read $TFDS_DATA_DIR. Exit code 1 if a part failed.
set -uo pipefail
cd "$(dirname "$0")/.."
out=$(realpath -m "${1:?expected the folder to write into}")
shift
mkdir -p "$out"
export TF_CPP_MIN_LOG_LEVEL=3 PYTHONUNBUFFERED=1 TF_FORCE_GPU_ALLOW_GROWTH=true
export XLA_PYTHON_CLIENT_PREALLOCATE=false
failed=0

part() { # part NAME MINUTES COMMAND...
    local name=$1 minutes=$2 begin=$SECONDS
    shift 2
    echo "== $name: $*"
    timeout --signal=INT --kill-after=15 "${minutes}m" "$@" >"$out/$name.log" 2>&1
    local code=$?
    echo "$name: exit code $code after $((SECONDS - begin)) s" | tee -a "$out/summary.txt"
    tail -n "${LINES_SHOWN:-12}" "$out/$name.log"
    return $code
}

together() { # waits for all parts that run; notes whether one failed
    local job
    for job in $(jobs -p); do wait "$job" || failed=1; done
}

selftest() {
    local mode
    for mode in eager graph xla bfloat16 tensor_float_32; do
        part "selftest_$mode" "${SELFTEST_MINUTES:-5}" python3 -m tfdp.selftest --modes=$mode &
    done
    together
}

# What needs no data and depends on the device. The tests multiply in float32, in which XLA in TensorFlow
# 2.21 has no convolution with a bias, unless it leaves them apart.
tests() {
    part test_gpu "${TESTS_MINUTES:-9}" python3 -m pytest -q -n 2 tests/test_gpu.py &
    XLA_FLAGS="${XLA_FLAGS:-} --xla_disable_hlo_passes=cudnn-fused-convolution-rewriter" \
        part tests "${TESTS_MINUTES:-9}" python3 -m pytest -v --tb=short -n "${TESTS_PROCESSES:-10}" \
        tests/gradients tests/noise tests/optimizers tests/layers &
    together
}

# Where the time of a step goes: processes prepare side by side, and each is profiled alone.
profile() {
    local point
    export BENCHMARK_TURNS=$out/turns
    for point in resnet18:256 transformer:4096 bilstm:4096 tutorial_cnn:4096; do
        for subject in keras_tf tfdp keras_tf_xla tfdp_xla; do
            case $point:$subject in bilstm*keras_tf_xla) continue ;; esac  # Keras compiles no LSTM
            part "profile_${point%:*}_$subject" "${PROFILE_MINUTES:-4}" \
                python3 benchmarks/peers/profile_tfdp.py "${point%:*}" "${point#*:}" $subject &
        done
    done
    together
    unset BENCHMARK_TURNS
}

steps() {
    part steps "$(awk "BEGIN { print ${STEPS_MINUTES:-9} + 0.5 }")" python3 -m benchmarks --device=gpu --repeats="${ROUNDS:-1}" \
        --seconds=0.4 --steps=20 --timeout=240 --memory_gib=100 --minutes="${STEPS_MINUTES:-9}" \
        --json="$out/gpu.json" || failed=1
}

# Recipes: the first is that of flags/defaults/mnist_dpsgd.cfg, with lots in one piece.
training() {
    local seed common="--mechanism=dpsgd --delta=1e-5 --normalization=layer --batch_size=2048 --epochs=20
        --sampling=poisson --momentum=0.9 --l2_norm_clip=1.0"
    for seed in 0 1 2; do
        part "mnist_$seed" "${TRAINING_MINUTES:-4}" python3 train.py $common --dataset=mnist --model=lenet5 \
            --nonormalize_output --epsilon=3 --learning_rate=1 --seed=$seed --model_dir="$out/mnist_$seed" &
        part "cifar10_$seed" "${TRAINING_MINUTES:-4}" python3 train.py $common --dataset=cifar10 \
            --model=cifar_tutorial --epsilon=8 --learning_rate=0.5 --seed=$seed \
            --model_dir="$out/cifar10_$seed" &
    done
    together
}

if [ $# -eq 0 ]; then set -- selftest tests profile steps training; fi
for name in "$@"; do
    case $name in
    selftest | tests | profile | steps | training) "$name" ;;
    *) echo "expected selftest, tests, profile, steps or training; found $name" >&2; exit 2 ;;
    esac
done
exit $failed
