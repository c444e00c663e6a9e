#include "troupe/actors/base/message_pool.hpp"

#include "troupe/actors/messages/port_messages.hpp"

#include <caf/actor_system.hpp>
#include <caf/actor_system_config.hpp>
#include <caf/event_based_actor.hpp>
#include <caf/scoped_actor.hpp>

#include <boost/test/unit_test.hpp>

#include <deque>

using namespace troupe;

namespace {

using pool = message_pool<tensor_ready>;

// A mailbox: what is sent lands here, and is disposed of when the test lets it go.
class box final : public caf::local_actor {
 public:
  explicit box(caf::actor_config& cfg) : caf::local_actor(cfg) {}
  void enqueue(caf::mailbox_element_ptr e, caf::execution_unit*) override {
    elements.push_back(std::move(e));
  }
  void launch(caf::execution_unit*, bool, bool) override {}
  const char* name() const override { return "box"; }
  caf::mailbox_element* peek_at_next_mailbox_element() override { return elements.front().get(); }
  std::deque<caf::mailbox_element_ptr> elements;
};

struct fixture {
  caf::actor_system_config config;
  caf::actor_system system{config};
  caf::actor_config actor_config;
  caf::actor handle = caf::make_actor<box, caf::actor>(system.next_actor_id(), system.node(),
                                                       &system, actor_config);
  box& mailbox = *caf::actor_cast<box*>(handle);

  // Sends, and takes the element as its receiver would.
  caf::mailbox_element_ptr pass(pool& p, tensor_ready m) {
    p.send(nullptr, handle, std::move(m));
    auto e = std::move(mailbox.elements.front());
    mailbox.elements.pop_front();
    return e;
  }
};

}  // namespace

BOOST_AUTO_TEST_SUITE(message_pool)

BOOST_FIXTURE_TEST_CASE(MP_1_an_element_that_was_recycled_carries_the_next_message, fixture) {
  pool p;
  auto first = pass(p, {3, 0, {.step = 7}, tensor::of({1, 2}, {2})});
  auto* message = pool::in_pooled(*first);
  BOOST_REQUIRE(message != nullptr);
  BOOST_TEST(message->port == 3u);
  BOOST_TEST(message->t.step == 7u);
  BOOST_TEST(message->value.data<float>()[1] == 2.0F);
  p.recycle(*first);
  BOOST_TEST(p.size() == 0u);  // not before its handler has returned
  const auto* address = first.get();
  first.reset();
  BOOST_TEST(p.size() == 1u);
  auto second = pass(p, {4, 0, {.step = 8}, {}});
  BOOST_TEST(second.get() == address);
  BOOST_TEST(p.size() == 0u);
  BOOST_TEST(pool::in_pooled(*second)->port == 4u);
  BOOST_TEST(!pool::in_pooled(*second)->value);
}

BOOST_FIXTURE_TEST_CASE(MP_1_an_element_that_nobody_recycled_is_deleted, fixture) {
  pool p;
  pass(p, {}).reset();
  BOOST_TEST(p.size() == 0u);
  auto again = pass(p, {});
  p.recycle(*again);
  again.reset();
  pass(p, {}).reset();  // recycled once does not mean for ever
  BOOST_TEST(p.size() == 0u);
}

BOOST_FIXTURE_TEST_CASE(MP_1_an_element_of_another_pool_is_deleted, fixture) {
  pool ours, theirs;
  auto e = pass(theirs, {});
  ours.recycle(*e);
  e.reset();
  BOOST_TEST(ours.size() == 0u);
  BOOST_TEST(theirs.size() == 0u);
}

BOOST_FIXTURE_TEST_CASE(MP_1_an_element_may_outlive_its_pool, fixture) {
  auto p = std::make_unique<pool>();
  auto e = pass(*p, {1, 0, {}, tensor::of({1}, {1})});
  p.reset();
  BOOST_TEST(pool::in_pooled(*e)->port == 1u);
  e.reset();
}

BOOST_FIXTURE_TEST_CASE(MP_2_an_element_in_the_pool_holds_no_tensor, fixture) {
  pool p;
  const auto value = tensor::of({1, 2, 3}, {3});
  auto e = pass(p, {0, 0, {}, value});
  p.recycle(*e);
  BOOST_TEST(!value.is_unique());
  e.reset();
  BOOST_TEST(value.is_unique());
}

BOOST_FIXTURE_TEST_CASE(an_element_is_a_complete_message, fixture) {
  pool p;
  auto e = pass(p, {5, 0, {.step = 9}, {}});
  BOOST_TEST((e->sender == nullptr));
  BOOST_TEST(!e->mid.is_request());
  BOOST_TEST(e->content().match_elements<tensor_ready>());
  const auto copy = e->copy_content_to_message();
  BOOST_TEST(copy.get_as<tensor_ready>(0).t.step == 9u);
  BOOST_TEST(e->move_content_to_message().get_as<tensor_ready>(0).port == 5u);
  BOOST_TEST((pool::in_pooled(*caf::make_mailbox_element(nullptr, caf::make_message_id(), {},
                                                         tensor_ready{})) == nullptr));
}

BOOST_AUTO_TEST_SUITE_END()
