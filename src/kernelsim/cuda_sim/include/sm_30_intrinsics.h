// All of it is declared before the kernel's source.
#pragma once
#include "kernelsim.h"
