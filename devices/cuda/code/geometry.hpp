#pragma once
// Where elements lie: plain numbers that kernels get as arguments, and how they follow from shapes.
// Compiled by nvcc and, for tests on the host, by any compiler.

#include "troupe/devices/device_code.hpp"

#include <cstdint>

namespace troupe::cuda::code {

// Loops over a box, innermost first; each moves a and b.
struct box {
  static constexpr int loops_max = 16;
  int loops = 0;
  std::int64_t size[loops_max]{}, a_step[loops_max]{}, b_step[loops_max]{};
  std::int64_t elements = 1;

  struct place {
    std::int64_t a, b;
  };
  TROUPE_DEVICE place at(std::int64_t i) const {
    return elements < (std::int64_t{1} << 31) ? walk(static_cast<std::uint32_t>(i))
                                              : walk(static_cast<std::uint64_t>(i));
  }

 private:
  template <class Index>
  TROUPE_DEVICE place walk(Index rest) const {
    place p{0, 0};
    for (int l = 0; l < loops; ++l) {
      const auto n = static_cast<Index>(size[l]);
      const auto d = static_cast<std::int64_t>(rest % n);
      rest /= n;
      p.a += d * a_step[l];
      p.b += d * b_step[l];
    }
    return p;
  }
};

// A tensor of which some dimensions are reduced: results in the order of what is kept, and the
// elements of each in order.
struct reduction {
  static constexpr int loops_max = 8;
  int kept = 0, reduced = 0;  // loops, innermost first
  std::int64_t kept_size[loops_max]{}, kept_step[loops_max]{}, reduced_size[loops_max]{},
      reduced_step[loops_max]{};
  std::int64_t results = 1, count = 1;  // of each

  TROUPE_DEVICE std::int64_t begin_of(std::int64_t result) const {
    return walk(result, kept, kept_size, kept_step);
  }
  TROUPE_DEVICE std::int64_t place_of(std::int64_t i) const {
    return reduced == 1 ? i * reduced_step[0] : walk(i, reduced, reduced_size, reduced_step);
  }

 private:
  TROUPE_DEVICE static std::int64_t walk(std::int64_t rest, int loops, const std::int64_t* size,
                                         const std::int64_t* step) {
    std::int64_t at = 0;
    for (int l = 0; l < loops; ++l) {
      at += rest % size[l] * step[l];
      rest /= size[l];
    }
    return at;
  }
};

// [outer, n, inner]: n lies along an axis.
struct along {
  std::int64_t outer = 1, n = 1, inner = 1;
  TROUPE_DEVICE std::int64_t rows() const { return outer * inner; }
  TROUPE_DEVICE std::int64_t begin_of(std::int64_t row) const {
    return row / inner * n * inner + row % inner;
  }
};

// A window of pooling, and the images that it goes over.
struct pool {
  std::int64_t planes = 0, h = 0, w = 0, oh = 0, ow = 0;
  std::int64_t size[2]{1, 1}, stride[2]{1, 1}, before[2]{0, 0}, after[2]{0, 0}, dilation[2]{1, 1};
  bool counts_padding = false;

  // Elements first to end - 1 of the window at `out` that lie inside.
  struct part {
    std::int64_t first, end;
  };
  TROUPE_DEVICE part inside(int axis, std::int64_t out) const {
    const auto length = axis == 0 ? h : w, begin = out * stride[axis] - before[axis];
    const auto first = begin >= 0 ? 0 : (-begin + dilation[axis] - 1) / dilation[axis];
    const auto last = begin >= length ? 0 : (length - 1 - begin) / dilation[axis] + 1;
    const auto end = last < size[axis] ? last : size[axis];
    return {first < end ? first : end, end};
  }
  TROUPE_DEVICE std::int64_t place(int axis, std::int64_t out, std::int64_t k) const {
    return out * stride[axis] - before[axis] + k * dilation[axis];
  }
  // Windows first to end - 1 along an axis that may have `x` among theirs.
  TROUPE_DEVICE part windows_of(int axis, std::int64_t x) const {
    const auto outs = axis == 0 ? oh : ow, reach = (size[axis] - 1) * dilation[axis],
               at = x + before[axis];
    const auto first = at <= reach ? 0 : (at - reach + stride[axis] - 1) / stride[axis];
    const auto end = at / stride[axis] + 1;
    return {first, end < outs ? end : outs};
  }
  // The element of the window at `out` that is x; -1: none.
  TROUPE_DEVICE std::int64_t element_of(int axis, std::int64_t out, std::int64_t x) const {
    const auto d = x - (out * stride[axis] - before[axis]);
    return d >= 0 && d % dilation[axis] == 0 && d / dilation[axis] < size[axis] ? d / dilation[axis]
                                                                                : -1;
  }
  // Elements that the mean is of.
  TROUPE_DEVICE std::int64_t count(std::int64_t y, std::int64_t x) const {
    const auto all = counts_padding ? padded(0, y) * padded(1, x)
                                    : (inside(0, y).end - inside(0, y).first) *
                                          (inside(1, x).end - inside(1, x).first);
    return all > 1 ? all : 1;
  }

 private:
  TROUPE_DEVICE std::int64_t padded(int axis, std::int64_t out) const {
    const auto length = axis == 0 ? h : w, begin = out * stride[axis] - before[axis];
    const auto n = (length + after[axis] - 1 - begin) / dilation[axis] + 1;
    return n < 0 ? 0 : n > size[axis] ? size[axis] : n;
  }
};

// What a kernel found wrong in its data: an index or a label that is outside. One for a stream, in
// memory that the host reads; the first one stays.
struct fault {
  unsigned int state = 0;  // 0: none, 1: being written, 2: whole
  unsigned int op = 0;     // number of the op
  std::int64_t at = 0, value = 0, low = 0, high = 0;
};
TROUPE_DEVICE inline void report(fault* f, unsigned int op, std::int64_t at, std::int64_t value,
                                 std::int64_t low, std::int64_t high) {
  if (f == nullptr) return;
#if defined(__CUDA_ARCH__)
  if (atomicCAS(&f->state, 0U, 1U) != 0) return;
#else
  if (f->state != 0) return;
#endif
  f->op = op;
  f->at = at;
  f->value = value;
  f->low = low;
  f->high = high;
#if defined(__CUDA_ARCH__)
  __threadfence_system();
  *const_cast<volatile unsigned int*>(&f->state) = 2;
#else
  f->state = 2;
#endif
}

// An index below n; -1: outside, and reported.
struct checked_index {
  fault* faults = nullptr;
  unsigned int op = 0;
  template <class Index>
  TROUPE_DEVICE std::int64_t operator()(const Index* indices, std::int64_t i,
                                        std::int64_t n) const {
    const auto x = static_cast<std::int64_t>(indices[i]);
    if (x >= 0 && x < n) return x;
    report(faults, op, i, x, 0, n - 1);
    return -1;
  }
};

}  // namespace troupe::cuda::code
