"""Makes Keras find tfdp's classes in files as soon as tfdp and Keras are imported, in either order.

Keras loads a class from a file only if the class was registered. Importing all of tfdp for that would
import TensorFlow, which `tfdp.accounting` does not need. So Keras gets a placeholder for each class,
which imports the class when a file needs it. When the module of a class is imported, the class
replaces its placeholder.

This module imports neither TensorFlow nor Keras.
"""

import importlib
import importlib.abc
import importlib.util
import sys

# Classes that may occur in a file, by their module.
CLASSES = {
    "tfdp.layers.gate": ("CanaryGate",),
    "tfdp.layers": (
        *("NormalizedLSTM", "NormalizedLSTMCell"),
        *("NoisyConv1D", "NoisyConv2D", "NoisyConv3D", "NoisyDense"),
        "NoisyWeights",
        "PrivateBatchNormalization",
        *("PublicBatchNormalization", "PublicExamples"),
    ),
    "tfdp.optimizers": ("DPDropoutOptimizer", "NoisySGD", "SGLDOptimizer", "SIDPSGDOptimizer"),
    "tfdp.optimizers.langevin": ("PowerDecay",),
    "tfdp.training.dp_model": ("PrivateModel",),
}
# Names of the classes that are derived from Keras' optimizers; {} is the name of Keras' class.
MADE = ("DPKeras{}Optimizer", "MatrixDP{}Optimizer", "Discrete{}Optimizer")
_NO_BASES = ("LossScaleOptimizer", "MultiOptimizer", "Optimizer", "OptimizerMap")


def register_with_keras() -> None:
    """Registers the placeholders now if Keras is imported, and otherwise right after its import."""
    if hasattr(sys.modules.get("keras"), "optimizers"):
        _register()
    elif not any(isinstance(finder, _AfterKeras) for finder in sys.meta_path):
        sys.meta_path.insert(0, _AfterKeras())


def _register():
    keras = sys.modules["keras"]
    if not hasattr(keras, "saving"):
        return  # a version that tfdp refuses when one of its packages is imported
    known = keras.saving.get_custom_objects()
    for module, names in CLASSES.items():
        for name in names:
            known.setdefault(f"tfdp>{name}", _placeholder(name, module))
    for base in vars(keras.optimizers):
        if base[0].isupper() and base not in _NO_BASES:
            for name in (form.format(base) for form in MADE):
                known.setdefault(f"tfdp>{name}", _placeholder(name, "tfdp.optimizers"))


def _placeholder(name: str, module: str) -> type:
    """Returns a class whose `from_config` imports the real class and calls its `from_config`."""

    def from_config(cls, config, **arguments):
        meant = getattr(importlib.import_module(module), name)
        return meant.from_config(config, **arguments)

    return type(name, (), {"from_config": classmethod(from_config), "__module__": module})


class _AfterKeras(importlib.abc.MetaPathFinder):
    """Calls `_register` after the import of Keras."""

    def find_spec(self, name, path, target=None):
        if name != "keras":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        execute = spec.loader.exec_module

        def exec_module(module):
            del spec.loader.exec_module  # this function, which hides the class method
            execute(module)
            _register()

        spec.loader.exec_module = exec_module
        return spec
