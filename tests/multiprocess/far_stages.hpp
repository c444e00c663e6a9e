#pragma once
// Stages that far_topologies sends to nodes.

#include <troupe/stages.hpp>

#include <cstdint>
#include <string>
#include <tuple>

struct scale {
  std::int64_t factor = 1;
  static constexpr auto fields = troupe::fields<&scale::factor>("factor");
  std::int64_t operator()(std::int64_t x) const { return x * factor; }
};
// Throws at each item that `of` divides; 0: never.
struct doom {
  std::int64_t of = 0;
  static constexpr auto fields = troupe::fields<&doom::of>("of");
  std::int64_t operator()(std::int64_t x) const;
};
// Never comes back from item `at`.
struct hang {
  std::int64_t at = 0;
  static constexpr auto fields = troupe::fields<&hang::at>("at");
  std::int64_t operator()(std::int64_t x) const;
};
struct slow {
  std::int64_t us = 0;
  static constexpr auto fields = troupe::fields<&slow::us>("us");
  std::int64_t operator()(std::int64_t x) const;
};
struct grow {
  std::int64_t bytes = 0;
  static constexpr auto fields = troupe::fields<&grow::bytes>("bytes");
  troupe::tensor operator()(std::int64_t x) const;
};
struct shrink {
  std::int64_t operator()(const troupe::tensor& t) const;
};
struct pid {
  std::string operator()(std::int64_t) const;
};
// Keeps what it has seen.
struct add_up {
  std::int64_t sum = 0;
  static constexpr auto fields = troupe::fields<&add_up::sum>("sum");
  std::int64_t operator()(std::int64_t x) { return sum += x; }
};
// What came of each last digit, added up.
struct last_digit {
  std::int64_t operator()(const std::int64_t& x) const { return x % 10; }
};
struct adds_up_well {
  std::int64_t state = 0;
  std::int64_t operator()(std::int64_t x) { return state += x; }
  static constexpr auto fields = troupe::fields<&adds_up_well::state>("state");
};
// How many, at the end.
struct counts {
  std::int64_t state = 0;
  void operator()(std::int64_t) { ++state; }
  std::int64_t finish() const { return state; }
  static constexpr auto fields = troupe::fields<&counts::state>("state");
};
// Three of each.
struct thrice {
  troupe::generator<std::int64_t> operator()(std::int64_t x) const;
};
// An end.
struct swallow {
  void operator()(std::int64_t) const {}
};

const troupe::stage_library& far_stages();
