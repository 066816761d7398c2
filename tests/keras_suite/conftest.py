"""Registers the marks of Keras' tests, whose files are imported for their cases of layers."""


def pytest_configure(config):
    """Without it, `--strict-markers` refuses the import of these files."""
    config.addinivalue_line("markers", "requires_trainable_backend: a mark of Keras' own tests")
