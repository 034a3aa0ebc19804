#pragma once
// at::parallel_for, refused where it would run on one thread.

#include <ATen/Parallel.h>

#ifndef _OPENMP
#error "at::parallel_for is inline: without OpenMP in this compilation it runs on one thread, in silence"
#endif
