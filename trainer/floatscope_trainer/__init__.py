"""The bundled trainer: a small GPT in any precision, with emulated or real FP8, and faults to inject."""
