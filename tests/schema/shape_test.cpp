#include "troupe/schema/shape.hpp"

#include <boost/test/unit_test.hpp>

#include <limits>
#include <vector>

using namespace troupe;

BOOST_AUTO_TEST_SUITE(shape)

BOOST_AUTO_TEST_CASE(SH_1_from_refuses_what_no_tensor_can_have) {
  constexpr auto huge = std::numeric_limits<std::int64_t>::max();
  BOOST_TEST(!troupe::shape::from(std::vector<dim>(9, dim{1, 0})).has_value());
  BOOST_TEST(!troupe::shape::from(std::vector<dim>{{-1, 0}}).has_value());
  BOOST_TEST(!troupe::shape::from(std::vector<dim>{{huge, 0}, {2, 0}}).has_value());
  BOOST_TEST(!troupe::shape::from(std::vector<dim>{{0, 0}, {huge, 0}, {2, 0}}).has_value());
  BOOST_TEST(troupe::shape::from(std::vector<dim>{{0, 0}, {huge, 0}})->elements() == 0);
}

BOOST_AUTO_TEST_CASE(a_symbolic_dimension_is_a_bound) {
  const auto bound = *troupe::shape::from(std::vector<dim>{{128, 1}, {10, 0}});
  BOOST_TEST(to_string(bound) == "[128?, 10]");
  BOOST_TEST(bound.admits({96, 10}));
  BOOST_TEST(bound.admits({0, 10}));
  BOOST_TEST(!bound.admits({129, 10}));
  BOOST_TEST(!bound.admits({96, 11}));
  BOOST_TEST(!bound.admits({96}));
  BOOST_TEST((bound.with_symbol(1, 96) == troupe::shape{96, 10}));
}

BOOST_AUTO_TEST_SUITE_END()
