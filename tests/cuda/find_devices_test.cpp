#include "troupe/devices/cuda/cuda_error.hpp"
#include "troupe/devices/cuda/libraries/find_devices.hpp"
#include "troupe/devices/cuda/libraries/shared_library.hpp"

#include <boost/test/unit_test.hpp>

#include <array>

using namespace troupe;
using namespace troupe::cuda;

BOOST_AUTO_TEST_SUITE(find_devices)

// 100: cudaErrorNoDevice, 35: cudaErrorInsufficientDriver, 999: unknown.
BOOST_AUTO_TEST_CASE(FD_1_what_is_missing_is_one_line_that_says_what_to_do) {
  BOOST_TEST(
      why_none({.driver_version = 0,
                .runtime_version = 13000,
                .status = 35,
                .status_text = "x",
                .devices = 0}) ==
      "no CUDA device: the NVIDIA driver is not installed or not loaded (libcuda.so.1 is missing); install it, or use the host's devices");
  BOOST_TEST(
      why_none({.driver_version = 12040,
                .runtime_version = 13000,
                .status = 35,
                .status_text = "x",
                .devices = 0}) ==
      "no CUDA device: the NVIDIA driver is too old, it is for CUDA 12.4 and this program needs 13.0; update the driver");
  BOOST_TEST(
      why_none({.driver_version = 13000,
                .runtime_version = 13000,
                .status = 100,
                .status_text = "x",
                .devices = 0}) ==
      "no CUDA device: the NVIDIA driver is there and sees none (CUDA_VISIBLE_DEVICES may hide them)");
  BOOST_TEST(why_none({.driver_version = 13000,
                       .runtime_version = 13000,
                       .status = 999,
                       .status_text = "unknown error",
                       .devices = 0}) == "no CUDA device: the NVIDIA driver said: unknown error");
  BOOST_TEST(why_none({.driver_version = 13010,
                       .runtime_version = 13000,
                       .status = 0,
                       .status_text = {},
                       .devices = 1})
                 .empty());
}

BOOST_AUTO_TEST_CASE(FD_1_an_index_beyond_names_those_that_are_there) {
  const driver_answer one{.driver_version = 13000,
                          .runtime_version = 13000,
                          .status = 0,
                          .status_text = {},
                          .devices = 1};
  auto two = one;
  two.devices = 2;
  BOOST_TEST(static_cast<bool>(check_index(two, "gpu:1", 1)));
  BOOST_TEST(check_index(one, "gpu:1", 1).error().message() ==
             "gpu:1: there is no CUDA device 1: this machine has one, number 0");
  BOOST_TEST(check_index(two, "gpu:7", 7).error().message() ==
             "gpu:7: there is no CUDA device 7: this machine has 2, numbers 0 to 1");
  BOOST_TEST(
      static_cast<bool>(check_index(two, "gpu:7", 7).error().code() == error_code::not_found));
  BOOST_TEST(!check_index(two, "gpu:-1", -1));
  BOOST_TEST(check_index({}, "gpu:0", 0)
                 .error()
                 .message()
                 .starts_with("gpu:0: no CUDA device: the NVIDIA driver is not installed"));
}

BOOST_AUTO_TEST_CASE(a_chip_without_code_is_refused) {
  BOOST_TEST(static_cast<bool>(check_capability("gpu:0", "NVIDIA H100", 9, 0)));
  BOOST_TEST(static_cast<bool>(check_capability("gpu:0", "NVIDIA B200", 10, 0)));
  BOOST_TEST(check_capability("gpu:0", "Tesla V100", 7, 0).error().message() ==
             "gpu:0: Tesla V100 has compute capability 7.0, and this program needs 7.5 or more");
}

BOOST_AUTO_TEST_CASE(this_machine_has_devices_or_says_in_one_line_why_not) {
  const auto chips = find_chips();
  if (chips)
    BOOST_TEST(!chips->empty());
  else
    BOOST_TEST_MESSAGE(chips.error().text());
  BOOST_TEST((chips || chips.error().message().find('\n') == std::string::npos));
}

BOOST_AUTO_TEST_CASE(errors_name_device_op_and_call) {
  BOOST_TEST(
      call_text({"gpu:0", "layer1/matmul"}, "cudaMemcpyAsync", "invalid argument",
                "cudaErrorInvalidValue") ==
      "gpu:0: op layer1/matmul: cudaMemcpyAsync failed: invalid argument (cudaErrorInvalidValue)");
  BOOST_TEST(call_text({}, "nvrtcVersion", "no", "") == "nvrtcVersion failed: no");
  BOOST_TEST(static_cast<bool>(check(0, "cudaFree", {})));
  BOOST_TEST(check(1, "cudaFree", {"gpu:1", ""}).error().message() ==
             "gpu:1: cudaFree failed: invalid argument (cudaErrorInvalidValue)");
  BOOST_TEST(is_lasting(700));  // an illegal address
  BOOST_TEST(!is_lasting(2));   // out of memory
  BOOST_TEST(is_out_of_memory(2));
}

BOOST_AUTO_TEST_CASE(SL_1_a_library_that_is_missing_is_named_with_what_to_install) {
  constexpr std::array files{"libtroupe_missing.so.1"};
  const auto l = shared_library::open({"Missing", files, "the package libmissing"});
  BOOST_REQUIRE(!l);
  BOOST_TEST(
      l.error().message().starts_with("Missing is missing (libtroupe_missing.so.1: cannot open"));
  BOOST_TEST(l.error().message().ends_with("): install the package libmissing"));
}

BOOST_AUTO_TEST_SUITE_END()
