import tfdp._compat  # noqa: F401, refuses another backend before any of these modules is imported
