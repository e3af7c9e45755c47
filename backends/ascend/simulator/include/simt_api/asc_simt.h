#pragma once
#include "usim/simt.h"
