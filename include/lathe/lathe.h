#pragma once
// Everything a user of Lathe includes: configure -> load -> inputs -> run -> outputs.
#include "lathe/error.h"
#include "lathe/profile.h"
#include "lathe/session.h"
#include "lathe/tensor.h"
#include "lathe/value.h"
