"""A suite that runs an engine in lockstep with transformers and says which operation is wrong."""
