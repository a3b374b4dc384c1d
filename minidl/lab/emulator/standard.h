// What a kernel may use of the standard library. All kernels share it precompiled, which saves a third of their time.
#include <cstddef>
#undef _GLIBCXX_USE_STD_SPEC_FUNCS                       // or <cmath> brings 1,900 lines that no kernel needs
#include <math.h>
#include <stdlib.h>

#include <cassert>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <initializer_list>
#include <type_traits>
