"""Computes sums of clipped gradients of the cases with other libraries, without noise.

Run this by hand in the environments that `python -m benchmarks` makes:

    python -m tests.gradients.make_peer_fixtures tf_privacy
    python -m tests.gradients.make_peer_fixtures opacus

Weights and data are stored, too, so that the test notices if NumPy draws other numbers.
"""

import importlib.metadata
import sys
from pathlib import Path

import numpy as np

from tests.gradients import peer_models as cases

FOLDER = Path(__file__).parent / "fixtures"


def save(case, method, sums, packages):
    x, y = cases.data(case)
    arrays = {f"weight_{i}": w for i, w in enumerate(cases.weights(case))}
    arrays |= {f"sum_{i}": np.asarray(s, np.float32) for i, s in enumerate(sums)}
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in packages)
    FOLDER.mkdir(exist_ok=True)
    path = FOLDER / f"{case}-{method}.npz"
    np.savez_compressed(path, x=x, y=y, versions=versions, **arrays)
    print(path.name, versions, f"{path.stat().st_size} bytes")


# -- TensorFlow Privacy ---------------------------------------------------------------------------


def tf_privacy():
    import tensorflow as tf
    import tensorflow_privacy
    from tensorflow_privacy.privacy.fast_gradient_clipping import layer_registry
    from tensorflow_privacy.privacy.keras_models import dp_keras_model

    packages = ("tensorflow-privacy", "tensorflow")
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")
    for case in cases.ROWS:
        x, y = cases.data(case)
        groups = cases.ROWS[case] // cases.MICROBATCH_SIZE.get(case, 1)
        model = cases.model(tf.keras, case)
        optimizer = tensorflow_privacy.VectorizedDPKerasSGDOptimizer(
            l2_norm_clip=cases.L2_NORM_CLIP[case],
            noise_multiplier=0.0,
            num_microbatches=groups,
            learning_rate=1.0,
        )
        with tf.GradientTape(persistent=True) as tape:
            losses = loss(y, model(x, training=True))
        pairs = optimizer._compute_gradients(losses, model.trainable_variables, tape=tape)
        # This optimizer divides the sum by the number of microbatches.
        sums = [groups * gradient.numpy() for gradient, _ in pairs]
        save(case, "tf_privacy_vectorized_optimizer", sums, packages)

    class Catch(tf.keras.optimizers.SGD):
        """Keeps the gradients instead of applying them."""

        def apply_gradients(self, grads_and_vars, **_):
            self.caught = [tf.convert_to_tensor(g).numpy() for g, _ in grads_and_vars]

    for case, fast in (("dense", False), ("dense", True), ("conv", False), ("text", False)):
        x, y = cases.data(case)
        registry = layer_registry.make_default_layer_registry() if fast else None

        def make(inputs, outputs, case=case, registry=registry):
            return dp_keras_model.DPModel(
                l2_norm_clip=cases.L2_NORM_CLIP[case],
                noise_multiplier=0.0,
                use_xla=False,
                layer_registry=registry,
                inputs=inputs,
                outputs=outputs,
            )

        model = cases.model(tf.keras, case, make)
        assert model._enable_fast_peg_computation == fast
        optimizer = Catch(1.0)
        mean = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizer=optimizer, loss=mean, run_eagerly=True)
        try:
            model.train_step((tf.constant(x), tf.constant(y)))
        except Exception as error:
            print(f"{case}: DPModel fails: {type(error).__name__}")
            continue
        # The gradients are means over the lot, with fast clipping as well.
        sums = [len(x) * gradient for gradient in optimizer.caught]
        save(case, "tf_privacy_fast_clipping" if fast else "tf_privacy_dp_model", sums, packages)


# -- Opacus ---------------------------------------------------------------------------------------


def torch_model(case):
    """Returns the model, and pairs (parameter, conversion to Keras' layout) in Keras' order."""
    import torch
    from torch import nn

    class ChannelsLast(nn.Module):
        def forward(self, x):
            return x.permute(0, 2, 3, 1)

    class MeanOverTokens(nn.Module):
        def forward(self, x):
            return x.mean(dim=1)

    if case == "conv":
        modules = [
            nn.Conv2d(2, 4, 3, 2),
            nn.GroupNorm(2, 4),
            nn.ReLU(),
            nn.Conv2d(4, 5, 3, padding=1),
            nn.Tanh(),
            *[ChannelsLast(), nn.Flatten(), nn.Linear(80, cases.CLASSES)],
        ]
    elif case == "text":
        modules = [
            nn.Embedding(cases.TOKENS, 6),
            nn.LayerNorm(6),
            *[MeanOverTokens(), nn.Linear(6, cases.CLASSES)],
        ]
    else:
        modules = [nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, cases.CLASSES)]
    model = nn.Sequential(*modules)
    back = []
    values = iter(cases.weights(case))
    for module in model:
        for parameter in module.parameters():  # weight, then bias, as in Keras
            value, restore = next(values), np.asarray
            if isinstance(module, nn.Linear) and parameter.ndim == 2:
                value, restore = value.T, np.transpose
            elif isinstance(module, nn.Conv2d) and parameter.ndim == 4:
                value = value.transpose(3, 2, 0, 1)

                def restore(array):
                    return np.transpose(array, (2, 3, 1, 0))

            parameter.data = torch.from_numpy(np.ascontiguousarray(value))
            back.append(restore)
    return model, back


def opacus():
    import torch
    from opacus import PrivacyEngine

    for case in cases.ROWS:
        if case in cases.MICROBATCH_SIZE:
            continue  # Opacus has no microbatches
        x, y = cases.data(case)
        x = x.transpose(0, 3, 1, 2).copy() if x.ndim == 4 else x
        x, y = torch.from_numpy(x), torch.from_numpy(y).long()
        for mode in ("hooks", "ghost"):
            model, back = torch_model(case)
            criterion = torch.nn.CrossEntropyLoss()
            data = torch.utils.data.TensorDataset(x, y)
            private, optimizer, *rest = PrivacyEngine().make_private(
                module=model,
                optimizer=torch.optim.SGD(model.parameters(), lr=1.0),
                data_loader=torch.utils.data.DataLoader(data, batch_size=len(x)),
                criterion=criterion,
                noise_multiplier=0.0,
                max_grad_norm=cases.L2_NORM_CLIP[case],
                grad_sample_mode=mode,
                poisson_sampling=False,
            )
            criterion = rest[0] if mode == "ghost" else criterion
            criterion(private(x), y).backward()
            if mode == "hooks":
                optimizer.clip_and_accumulate()
            parameters = list(model.parameters())
            found = [p.summed_grad if mode == "hooks" else p.grad for p in parameters]
            sums = [restore(g.numpy()) for restore, g in zip(back, found, strict=True)]
            save(case, f"opacus_{mode}", sums, ("opacus", "torch"))


if __name__ == "__main__":
    {"tf_privacy": tf_privacy, "opacus": opacus}[sys.argv[1]]()
