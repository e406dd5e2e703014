#pragma once

#include "opwright_simulator.h"
