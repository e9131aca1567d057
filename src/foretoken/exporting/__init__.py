"""Export of trained models as folders that run without foretoken, peft and transformers: ONNX, or PyTorch."""
