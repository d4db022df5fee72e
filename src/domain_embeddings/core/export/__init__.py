"""What leaves the project: models of one width, ONNX, vectors of a corpus, search indexes."""
