// In place of torch's: what host functions use of it, without Python and the C++ frontend.
#pragma once
#include <opwright/aten.h>
