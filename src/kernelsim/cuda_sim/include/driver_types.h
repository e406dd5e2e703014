#pragma once

#include "kernelsim.h"
