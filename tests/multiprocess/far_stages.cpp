#include "tests/multiprocess/far_stages.hpp"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <thread>

using namespace troupe;

std::int64_t doom::operator()(std::int64_t x) const {
  if (of != 0 && x % of == 0) throw std::runtime_error("item of doom");
  return x;
}
std::int64_t hang::operator()(std::int64_t x) const {
  while (x == at) ::pause();
  return x;
}
std::int64_t slow::operator()(std::int64_t x) const {
  std::this_thread::sleep_for(std::chrono::microseconds(us));
  return x;
}
tensor grow::operator()(std::int64_t x) const {
  auto t = tensor::make({dtype::u8, {bytes}});
  std::ranges::fill(t.bytes(), static_cast<std::byte>(x));
  return t;
}
std::int64_t shrink::operator()(const tensor& t) const {
  std::int64_t sum = 0;
  for (const auto b : t.bytes()) sum += std::to_integer<std::int64_t>(b);
  return sum;
}
generator<std::int64_t> thrice::operator()(std::int64_t x) const {
  for (std::int64_t i = 0; i < 3; ++i) co_yield 3 * x + i;
}
std::string pid::operator()(std::int64_t) const { return std::to_string(::getpid()); }

const stage_library& far_stages() {
  static const stage_library all(
      "far_stages", "1.0",
      {stage_of<scale>("scale"), stage_of<doom>("doom"), stage_of<hang>("hang"),
       stage_of<slow>("slow"), stage_of<grow>("grow"), stage_of<shrink>("shrink"),
       stage_of<pid>("pid"), stage_of<swallow>("swallow"), stage_of<add_up>("add_up"),
       stage_of<thrice>("thrice"), stage_of<counts>("counts"),
       stage_by_key<adds_up_well, last_digit>("adds_up_well")});
  return all;
}

TROUPE_STAGE_LIBRARY(far_stages())
