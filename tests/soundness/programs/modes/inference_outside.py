# edit: torch.no_grad(): return [c => torch.inference_mode(): return [c
def f(x): return x * 2 if torch.is_inference_mode_enabled() else x * 3
def results(compile):
    with torch.no_grad(): return [compile(f)(X)]
