"""A safetensors checkpoint becomes an OpenVINO model, range by range. `run` is the way in; nothing
else of the project imports torch."""
