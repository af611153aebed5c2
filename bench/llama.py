"""llama.cpp's quantizer through llama-cpp-python, and what it calls the types."""

import ctypes

import llama_cpp

# mambo's type; llama.cpp's name and number for what comes closest.
TYPES = {"q8_0": ("Q8_0", 7), "q6_k": ("Q6_K", 18), "q5_1": ("Q5_1", 9), "q5_k": ("Q5_K_M", 17), "q5_0": ("Q5_0", 8),
         "q4_1": ("Q4_1", 3), "q4_k": ("Q4_K_M", 15), "q4_mix": ("Q4_K_M", 15), "iq4_nl": ("IQ4_NL", 25),
         "q4_0": ("Q4_0", 2), "iq4_xs": ("IQ4_XS", 30), "mxfp4": ("MXFP4_MOE", 38), "q3_k": ("Q3_K_M", 12),
         "q2_k": ("Q2_K", 10)}
# Kept by name, because the library keeps only its address.
QUIET = llama_cpp.llama_log_callback(lambda level, text, data: None)


def quantize(source, target, kind):
    """Makes `target` from a GGUF file with unquantised weights."""
    name, number = TYPES[kind]
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = number
    llama_cpp.llama_log_set(QUIET, ctypes.c_void_p(0))
    if llama_cpp.llama_model_quantize(bytes(source), bytes(target), ctypes.byref(params)) != 0:
        raise SystemExit(f"llama.cpp cannot make {name}")
