#pragma once
// Included before everything else where clang compiles: Cap'n Proto 0.9 counts on C++20 turning
// `text == string` around, which clang (from 16 on) does not where the class also has operator!=.
// Its own operators for C++17 are there if it believes that there is no <=>.

#include <compare>
#include <functional>
#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

#pragma push_macro("__cpp_impl_three_way_comparison")
#undef __cpp_impl_three_way_comparison
#include <kj/string.h>
#pragma pop_macro("__cpp_impl_three_way_comparison")
