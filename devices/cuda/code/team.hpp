#pragma once
// The threads that work on one row, group or result together, as kernels see them; and the one on
// the host that tests run kernels with.
//
// A team has rank(), size() and join(x, op): op over the x of all its threads, which all of them
// get. op is commutative; the order is fixed by size() alone, so results do not differ from run to
// run. scan(x, total): the sum of x of lower ranks.

#include "troupe/devices/device_code.hpp"

#include <cstdint>

namespace troupe::cuda::code {

struct alone {
  std::int64_t rank() const { return 0; }
  std::int64_t size() const { return 1; }
  template <class T, class Op>
  T join(T x, Op) {
    return x;
  }
  template <class T>
  T scan(T x, T& total) {
    total = x;
    return T{};
  }
};

struct plus_op {
  template <class T>
  TROUPE_DEVICE T operator()(T a, T b) const {
    return a + b;
  }
};
struct larger_op {  // a NaN is passed over
  template <class T>
  TROUPE_DEVICE T operator()(T a, T b) const {
    return b > a || a != a ? b : a;
  }
};

}  // namespace troupe::cuda::code
