#pragma once
// A stage that has an instance of its function for each key (partition_by of flow.hpp).
//
// Threading, ownership: as stages.

#include "troupe/runtime/flow/function_stage.hpp"

#include <algorithm>
#include <exception>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

namespace troupe {

// `key` of an item says which instance of F takes it.
template <class K, class F, class T>
struct keyed {
  using key_type = std::remove_cvref_t<std::invoke_result_t<K&, const T&>>;
  static constexpr bool gets_key = requires(F& g, const key_type& k) { g.finish(k); };
  static auto end_one(F& g, const key_type& k) {
    if constexpr (gets_key)
      return g.finish(k);
    else if constexpr (has_finish<F>)
      return g.finish();
  }
  using end_type = decltype(end_one(std::declval<F&>(), std::declval<const key_type&>()));
  using taken = typename returned_by<F, T>::item;
  // What comes of it; void: nothing does.
  using item = std::conditional_t<std::is_void_v<taken>, typename returned<end_type>::item, taken>;
};

template <class K, class F, class T>
class keyed_stage final : public stage {
  using types = keyed<K, F, T>;

 public:
  explicit keyed_stage(const std::pair<K, F>& p) : key_(p.first), prototype_(p.second) {}
  // Once for all keys, whose instances are copies.
  result<void> open() override { return open_function(prototype_); }
  bool take(std::uint32_t, any_value&& v, stage_output& out) override {
    auto& value = v.get<T>();
    auto& f = of_.try_emplace(key_(std::as_const(value)), prototype_).first->second;
    if constexpr (std::is_void_v<std::invoke_result_t<F&, T>>) {
      f(std::move(value));
      return false;
    } else {
      return put_returned(f(std::move(value)), left_, out);
    }
  }
  bool end(std::uint32_t, stage_output& out) override {
    ends_ = true;
    return go_on(out);
  }
  bool go_on(stage_output& out) override {
    if (!ends_) return put_next(left_, out);
    // One key that fails leaves the others.
    try {
      return go_on_at_end(out);
    } catch (const std::exception& e) {
      out.fail({error_code::failed, e.what()});
    } catch (...) {
      out.fail({error_code::failed, "it threw something that is no exception"});
    }
    left_ = {};
    return true;
  }
  std::optional<tensor> save() const override {
    if constexpr (is_saved) {
      return saved_by([&](byte_writer& w) {
        w.number(std::uint64_t{of_.size()});
        for (const auto& [key, f] : of_) write_value(w, key), write_value(w, f.state);
      });
    } else {
      return std::nullopt;
    }
  }
  bool load([[maybe_unused]] const tensor& saved) override {
    if constexpr (is_saved) {
      of_.clear();
      return load_from(saved, [&](byte_reader& r) {
        for (auto n = r.count(); n > 0 && !r.failed(); --n) {
          typename types::key_type key{};
          read_value(r, key);
          read_value(r, of_.try_emplace(std::move(key), prototype_).first->second.state);
        }
      });
    } else {
      return false;
    }
  }

 private:
  static constexpr bool is_saved = has_state<F> && can_travel<typename types::key_type>;
  K key_;
  F prototype_;
  using table = std::unordered_map<typename types::key_type, F>;
  bool go_on_at_end(stage_output& out) {
    if (put_next(left_, out)) return true;
    if (!is_sorted_) sort_keys();
    if (last_.empty()) {
      of_.clear();
      return false;
    }
    auto& [key, f] = *last_.back();
    last_.pop_back();
    if constexpr (std::is_void_v<typename types::end_type>)
      types::end_one(f, key);
    else
      put_returned(types::end_one(f, key), left_, out);
    return true;
  }
  // At the end keys come in their order, the last one first here.
  void sort_keys() {
    is_sorted_ = true;
    last_.reserve(of_.size());
    for (auto& one : of_) last_.push_back(&one);
    std::ranges::sort(last_, [](const auto* a, const auto* b) { return b->first < a->first; });
  }
  table of_;
  std::vector<typename table::value_type*> last_;
  generator<typename types::item> left_;
  bool ends_ = false, is_sorted_ = false;
};

}  // namespace troupe
