// The native part of fast calls, one extension. extension.py loads it.
#include <guarded_call.h>
#include <recorded_call.h>
#include <tracked_call.h>
