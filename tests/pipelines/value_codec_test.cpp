// Values as bytes, and items as frames: what is written is read, and other bytes end in an error.

#include "troupe/runtime/flow/item_frames.hpp"
#include "troupe/runtime/flow/value_codec.hpp"

#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <cmath>
#include <deque>
#include <functional>
#include <limits>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>

using namespace troupe;

namespace {

enum class colour : std::uint8_t { red, green };
struct point {
  double x = 0, y = 0;
  bool operator==(const point&) const = default;
  static constexpr auto fields = troupe::fields<&point::x, &point::y>("x", "y");
};
struct everything {
  bool is = false;
  char letter = 0;
  std::int8_t small = 0;
  std::uint64_t large = 0;
  float number = 0;
  colour c = colour::red;
  std::string text;
  std::vector<std::int32_t> numbers;
  std::vector<bool> bits;
  std::vector<std::string> texts;
  std::array<point, 2> points{};
  std::optional<std::string> maybe;
  std::pair<int, std::string> both;
  std::tuple<std::uint16_t, point> three;
  std::map<std::string, std::vector<point>> by_name;
  bool operator==(const everything&) const = default;
  static constexpr auto fields =
      troupe::fields<&everything::is, &everything::letter, &everything::small, &everything::large,
                     &everything::number, &everything::c, &everything::text, &everything::numbers,
                     &everything::bits, &everything::texts, &everything::points, &everything::maybe,
                     &everything::both, &everything::three, &everything::by_name>(
          "is", "letter", "small", "large", "number", "c", "text", "numbers", "bits", "texts",
          "points", "maybe", "both", "three", "by_name");
};
everything full() {
  return {true,
          'x',
          -7,
          std::numeric_limits<std::uint64_t>::max(),
          -0.0F,
          colour::green,
          std::string("a\0b", 3),
          {1, -2, 3},
          {true, false, true},
          {"", "two"},
          {point{1, 2}, point{3, std::numeric_limits<double>::infinity()}},
          "here",
          {4, "four"},
          {5, {6, 7}},
          {{"a", {{1, 1}}}, {"b", {}}}};
}
struct holds_itself {
  std::vector<holds_itself> children;
  static constexpr auto fields = troupe::fields<&holds_itself::children>("children");
};
struct lists_nothing {
  int x = 0;
};

template <class T>
bool goes_round(const T& v) {
  const auto back = value_of<T>(bytes_of(v));
  return back && *back == v;
}

tensor ramp(std::int64_t n) {
  auto t = tensor::make({dtype::f32, {n}});
  for (std::int64_t i = 0; i < n; ++i) t.data<float>()[i] = static_cast<float>(i);
  return t;
}
bool equal(const tensor& a, const tensor& b) {
  return bool(a) == bool(b) &&
         (!a || (a.spec() == b.spec() && std::ranges::equal(a.bytes(), b.bytes())));
}

flow_item item_of(any_value v, std::uint64_t number) {
  flow_item it{std::move(v), {}, 77};
  it.origin.number = number;
  it.origin.source = 3;
  it.origin.ticket = 9;
  return it;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(value_codec)

BOOST_AUTO_TEST_CASE(what_is_written_is_read) {
  BOOST_CHECK(goes_round(full()));
  BOOST_CHECK(goes_round(everything()));
  BOOST_CHECK(goes_round(std::string()));
  BOOST_CHECK(goes_round(std::vector<point>(100, {0.5, -1})));
  BOOST_CHECK(goes_round(std::optional<int>()));
  BOOST_CHECK(goes_round(std::set<std::string>{"b", "", "a"}));
  BOOST_CHECK(goes_round(std::deque<std::optional<int>>{1, std::nullopt, 3}));
  BOOST_CHECK((!can_travel<std::unordered_map<int, int>>));
  const auto nan = value_of<double>(bytes_of(std::nan("7")));
  BOOST_REQUIRE(nan);
  BOOST_CHECK(std::isnan(*nan));
  const auto zero = value_of<float>(bytes_of(-0.0F));
  BOOST_REQUIRE(zero);
  BOOST_CHECK(std::signbit(*zero));
}

BOOST_AUTO_TEST_CASE(tensors_are_parts_of_what_came_or_copies) {
  for (const std::int64_t n : {0, 1, 17, 5000}) {
    const auto t = ramp(n);
    const auto copied = value_of<tensor>(bytes_of(t));
    BOOST_REQUIRE(copied);
    BOOST_CHECK(equal(*copied, t));
    byte_writer counts;
    write_value(counts, std::string("in front"));
    write_value(counts, t);
    auto whole = tensor::make({dtype::u8, {static_cast<std::int64_t>(counts.size())}});
    byte_writer w(whole.bytes());
    write_value(w, std::string("in front"));
    write_value(w, t);
    byte_reader r(whole);
    BOOST_CHECK_EQUAL(r.text(), "in front");
    tensor part;
    read_value(r, part);
    BOOST_CHECK(!r.failed() && r.left() == 0);
    BOOST_CHECK(equal(part, t));
    const auto* p = std::as_const(part).bytes().data();
    const bool lies_in_it = p >= std::as_const(whole).bytes().data() &&
                            p < std::as_const(whole).bytes().data() + whole.size_bytes();
    BOOST_CHECK_EQUAL(lies_in_it, n == 5000);
    BOOST_CHECK_EQUAL(reinterpret_cast<std::uintptr_t>(p) % tensor::alignment_bytes, 0U);
    whole = {};
    BOOST_CHECK(equal(part, t));
  }
  const auto none = value_of<tensor>(bytes_of(tensor()));
  BOOST_REQUIRE(none);
  BOOST_CHECK(!*none);
  const auto b = tensor::make({dtype::bf16, {2, 3}});
  std::ranges::fill(const_cast<tensor&>(b).bytes(), std::byte{9});
  BOOST_CHECK(equal(*value_of<tensor>(bytes_of(b)), b));
}

BOOST_AUTO_TEST_CASE(layouts_say_what_two_processes_have_to_agree_on) {
  BOOST_CHECK_EQUAL(layout_of<point>(), "point{x:f64,y:f64}");
  BOOST_CHECK_EQUAL(
      layout_of<everything>(),
      "everything{is:bool,letter:i8,small:i8,large:u64,number:f32,c:enum u8,text:text,numbers:[i32],"
      "bits:[bool],texts:[text],points:[point{x:f64,y:f64};2],maybe:text?,both:(i32,text),"
      "three:(u16,point{x:f64,y:f64}),by_name:{text:[point{x:f64,y:f64}]}}");
  BOOST_CHECK_EQUAL(layout_of<std::vector<tensor>>(), "[tensor]");
  static_assert(!can_travel<holds_itself> && !can_travel<lists_nothing> && !can_travel<int*> &&
                !can_travel<long double> && !can_travel<std::function<void()>>);
  BOOST_CHECK(codec_of<lists_nothing>() == nullptr);
  BOOST_REQUIRE(codec_of<point>() != nullptr);
}

// Every prefix, and many a byte that is another: an answer or none, within the bytes.
BOOST_AUTO_TEST_CASE(bytes_of_anybody_else_are_refused) {
  const auto good = bytes_of(full());
  for (std::size_t n = 0; n < good.size(); ++n)
    BOOST_CHECK(!value_of<everything>(std::span(good).first(n)));
  auto longer = good;
  longer.push_back(std::byte{0});
  BOOST_CHECK(!value_of<everything>(longer));
  std::mt19937_64 random(1);
  std::size_t refused = 0;
  for (int i = 0; i < 20'000; ++i) {
    auto bad = good;
    for (auto n = 1 + random() % 3; n > 0; --n)
      bad[random() % bad.size()] = static_cast<std::byte>(random());
    refused += value_of<everything>(bad) ? 0 : 1;
  }
  BOOST_CHECK_GT(refused, 1000U);
  // Sizes that nobody has memory for.
  std::vector<std::byte> huge(8, std::byte{0xff});
  BOOST_CHECK(!value_of<std::string>(huge));
  BOOST_CHECK(!value_of<std::vector<double>>(huge));
  BOOST_CHECK(!value_of<std::vector<std::string>>(huge));
  for (const std::int64_t size : {std::int64_t{-1}, std::int64_t{1} << 62}) {
    byte_writer counts;
    std::vector<std::byte> bytes(64);
    byte_writer w(bytes);
    w.number(dtype::f32);
    w.number(std::uint8_t{1});
    w.number(size);
    BOOST_CHECK(!value_of<tensor>(bytes));
  }
}

BOOST_AUTO_TEST_CASE(frames_have_items_with_all_that_is_known_of_them) {
  const auto label = std::make_shared<const std::string>("in/a.png");
  std::vector<flow_item> items;
  items.push_back(item_of(any_value(std::string("one")), 1));
  items.back().origin.label = label;
  items.push_back(item_of(any_value(std::string("two")), 2));
  items.back().origin.label = label;
  items.back().origin.born_ns = 400;
  items.push_back(item_of(any_value(), 3));
  items.back().origin.ends_ticket = true;
  for (const bool same_clock : {true, false}) {
    const far_end far{codec_of<std::string>(), same_clock};
    const auto frame = items_frame(5, items, true, far, 1000, 1 << 20);
    BOOST_REQUIRE(frame);
    const auto head = head_of(*frame);
    BOOST_REQUIRE(head);
    BOOST_CHECK(head->kind == frame_kind::items);
    BOOST_CHECK_EQUAL(head->edge, 5U);
    auto read = items_of(*frame, far, 5000);
    BOOST_REQUIRE(read);
    BOOST_CHECK(read->is_last);
    BOOST_REQUIRE_EQUAL(read->items.size(), 3U);
    for (std::size_t i = 0; i < 3; ++i) {
      const auto& o = read->items[i].origin;
      BOOST_CHECK_EQUAL(o.number, i + 1);
      BOOST_CHECK_EQUAL(o.source, 3U);
      BOOST_CHECK_EQUAL(o.ticket, 9U);
      BOOST_CHECK_EQUAL(o.ends_ticket, i == 2);
      BOOST_CHECK_EQUAL(read->items[i].bytes, 77U);
    }
    BOOST_CHECK_EQUAL(read->items[0].value.get<std::string>(), "one");
    BOOST_CHECK_EQUAL(read->items[1].value.get<std::string>(), "two");
    BOOST_CHECK(!read->items[2].value);
    BOOST_CHECK_EQUAL(*read->items[0].origin.label, "in/a.png");
    BOOST_CHECK(read->items[0].origin.label == read->items[1].origin.label);
    BOOST_CHECK(read->items[2].origin.label == nullptr);
    BOOST_CHECK_EQUAL(read->items[0].origin.born_ns, 0);
    BOOST_CHECK_EQUAL(read->items[1].origin.born_ns, same_clock ? 400 : 4400);
    BOOST_CHECK(!taken_of(*frame));
    BOOST_CHECK(!items_of(*frame, {}, 0));
    BOOST_CHECK(!items_frame(5, items, true, far, 1000, 16));
  }
  const auto taken = taken_frame(6, 10, 2000);
  BOOST_REQUIRE(taken_of(taken));
  BOOST_CHECK_EQUAL(taken_of(taken)->items, 10U);
  BOOST_CHECK_EQUAL(taken_of(taken)->bytes, 2000U);
  BOOST_CHECK(head_of(closed_frame(7))->kind == frame_kind::closed);
  BOOST_CHECK(!head_of(tensor()));
  BOOST_CHECK(!head_of(ramp(3)));
}

BOOST_AUTO_TEST_CASE(marks_come_by_the_edges_of_lanes_alone) {
  auto state = tensor::make({dtype::u8, {9'000}});
  std::ranges::fill(state.bytes(), std::byte{7});
  std::vector<flow_item> items;
  for (const auto kind : {item_kind::item, item_kind::load, item_kind::cut, item_kind::end}) {
    auto& it = items.emplace_back(item_of(any_value(), 1));
    it.origin.kind = kind;
    if (kind == item_kind::load || kind == item_kind::cut) it.value = any_value(tensor(state));
  }
  items[0].value = any_value(std::string("item"));
  const far_end lane{codec_of<std::string>(), true, true};
  const auto frame = items_frame(5, items, false, lane, 0, 1 << 20);
  BOOST_REQUIRE(frame);
  auto read = items_of(*frame, lane, 0);
  BOOST_REQUIRE(read);
  BOOST_REQUIRE_EQUAL(read->items.size(), 4U);
  BOOST_CHECK_EQUAL(read->items[0].value.get<std::string>(), "item");
  for (const std::size_t i : {1U, 2U}) {
    auto& t = read->items[i].value.get<tensor>();
    BOOST_CHECK(t.spec() == state.spec());
    BOOST_CHECK(std::ranges::equal(std::as_const(t).bytes(), std::as_const(state).bytes()));
  }
  BOOST_CHECK(read->items[1].origin.kind == item_kind::load);
  BOOST_CHECK(read->items[2].origin.kind == item_kind::cut);
  BOOST_CHECK(read->items[3].origin.kind == item_kind::end && !read->items[3].value);
  BOOST_CHECK(!items_of(*frame, {codec_of<std::string>(), true, false}, 0));
}

BOOST_AUTO_TEST_CASE(frames_of_anybody_else_are_refused) {
  std::vector<flow_item> items;
  for (std::uint64_t i = 0; i < 5; ++i) {
    items.push_back(item_of(any_value(full()), i));
    items.back().origin.label = std::make_shared<const std::string>("label");
  }
  const far_end far{codec_of<everything>(), true};
  const auto good = items_frame(1, items, false, far, 0, 1 << 20);
  BOOST_REQUIRE(good);
  std::mt19937_64 random(2);
  std::size_t refused = 0;
  for (int i = 0; i < 5'000; ++i) {
    const auto n = static_cast<std::int64_t>(random() % 4 == 0 ? random() % good->size_bytes()
                                                               : good->size_bytes());
    auto bad = tensor::make({dtype::u8, {n}});
    std::ranges::copy(std::as_const(*good).bytes().first(std::size_t(n)), bad.bytes().begin());
    if (n > 0)
      for (auto k = 1 + random() % 3; k > 0; --k)
        bad.bytes()[random() % bad.size_bytes()] = static_cast<std::byte>(random());
    const auto head = head_of(bad);
    refused += head && items_of(bad, far, 0) ? 0 : 1;
  }
  BOOST_CHECK_GT(refused, 1000U);
}

BOOST_AUTO_TEST_SUITE_END()
