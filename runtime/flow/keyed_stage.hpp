#pragma once
// A stage that has an instance of its function for each key (partition_by of flow.hpp).
//
// Threading, ownership: as stages.

#include "troupe/runtime/flow/function_stage.hpp"

#include <exception>
#include <map>
#include <type_traits>
#include <utility>

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
    if (put_next(left_, out)) return true;
    if (!ends_ || of_.empty()) return false;
    auto one = of_.extract(of_.begin());
    // One key that fails leaves the others.
    if constexpr (!std::is_void_v<typename types::end_type>) {
      try {
        put_returned(types::end_one(one.mapped(), one.key()), left_, out);
      } catch (const std::exception& e) {
        out.fail({error_code::failed, e.what()});
      }
    }
    return true;
  }

 private:
  K key_;
  F prototype_;
  std::map<typename types::key_type, F> of_;
  generator<typename types::item> left_;
  bool ends_ = false;
};

}  // namespace troupe
