"""A trained model as a folder that runs without foretoken, peft and transformers: ONNX, or PyTorch's own."""
