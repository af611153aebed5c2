// Stored block types to values, each once.
#pragma once
#include "common.cuh"
