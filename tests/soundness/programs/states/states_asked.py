# insert: torch.autograd.set_detect_anomaly(True)
def f(x):
    x = x * 2 if torch.is_anomaly_enabled() else x * 3
    return x
