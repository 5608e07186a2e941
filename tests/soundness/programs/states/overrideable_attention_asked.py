# insert: torch._C._set_sdp_use_overrideable(False)
def f(x): return x * 2 if torch._C._get_overrideable_sdp_enabled() else x * 3
