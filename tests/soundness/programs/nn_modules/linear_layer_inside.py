# insert: torch.relu = lambda x: x * 3
# insert: torch.layer_norm = lambda x, *a: x * 3
# insert: torch.Tensor.softmax = lambda s, dim: s * 3
nn = torch.nn
m = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Softmax(-1), nn.LayerNorm(4)).eval()
results = infer(m, X)
