#pragma once
// Structs of tensors as what a model is fed with, and what it makes: a field that is a tensor is
// called as the feed or the fetch. Fields of other types are not fed; where the struct that comes
// out has one of the same name and type, it goes along.
//
//   struct question {
//     std::string id;
//     tensor input_ids, attention_mask;
//     static constexpr auto fields =
//         troupe::fields<&question::id, &question::input_ids, &question::attention_mask>(
//             "id", "input_ids", "attention_mask");
//   };
//   struct answer {
//     std::string id;
//     tensor logits;
//     static constexpr auto fields =
//         troupe::fields<&answer::id, &answer::logits>("id", "logits");
//   };

#include "troupe/devices/tensor.hpp"
#include "troupe/runtime/flow/value_traits.hpp"

#include <cstddef>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace troupe {

template <class T, class M>
M type_of_member(M T::*);
template <auto Member>
using member_type = decltype(type_of_member(Member));

template <class M, auto... Members>
constexpr bool has_field(const field_list<Members...>& all, std::string_view name) {
  std::size_t i = 0;
  bool found = false;
  ((found = found || (std::is_same_v<M, member_type<Members>> && all.names[i] == name), ++i), ...);
  return found;
}
template <auto... Members>
constexpr std::size_t tensors_in(const field_list<Members...>&) {
  return (std::size_t{0} + ... + (std::is_same_v<member_type<Members>, tensor> ? 1 : 0));
}
template <auto... In, auto... Out>
constexpr bool all_go_along(const field_list<In...>& in, const field_list<Out...>& out) {
  std::size_t i = 0;
  bool all = true;
  ((all = all && (std::is_same_v<member_type<Out>, tensor> ||
                  has_field<member_type<Out>>(in, out.names[i])),
    ++i),
   ...);
  return all;
}

template <class T>
std::vector<std::string> names_of_tensors() {
  std::vector<std::string> names;
  const T value{};
  T::fields.each(value, [&](std::string_view name, const auto& m) {
    if constexpr (std::is_same_v<std::remove_cvref_t<decltype(m)>, tensor>)
      names.emplace_back(name);
  });
  return names;
}
template <class T>
std::vector<tensor> tensors_of(const T& value) {
  std::vector<tensor> all;
  T::fields.each(value, [&](std::string_view, const auto& m) {
    if constexpr (std::is_same_v<std::remove_cvref_t<decltype(m)>, tensor>) all.push_back(m);
  });
  return all;
}
// `made`: as names_of_tensors<Out>() says.
template <class Out, class In>
Out with_tensors(const In& in, std::vector<tensor> made) {
  static_assert(all_go_along(In::fields, Out::fields),
                "a model makes tensors; a field of another type needs one of its name and type in "
                "what is fed");
  Out out{};
  std::size_t next = 0;
  Out::fields.each(out, [&](std::string_view name, auto& m) {
    using M = std::remove_cvref_t<decltype(m)>;
    if constexpr (std::is_same_v<M, tensor>) {
      m = std::move(made[next++]);
    } else {
      In::fields.each(in, [&](std::string_view theirs, const auto& from) {
        if constexpr (std::is_same_v<std::remove_cvref_t<decltype(from)>, M>)
          if (theirs == name) m = from;
      });
    }
  });
  return out;
}

template <class In, class Out>
concept tensor_structs = has_fields<In> && has_fields<Out> && tensors_in(In::fields) > 0 &&
                         tensors_in(Out::fields) > 0;

// The same for all items of a batch, of a call that has a batch's tensors, or one item's.
template <class In>
std::vector<std::vector<tensor>> tensors_of_each(const std::vector<In>& batch) {
  std::vector<std::vector<tensor>> all;
  all.reserve(batch.size());
  for (const auto& item : batch) all.push_back(tensors_of(item));
  return all;
}
template <class Out, class In>
std::vector<Out> with_tensors_of_each(const std::vector<In>& batch,
                                      std::vector<std::vector<tensor>> made) {
  std::vector<Out> all;
  all.reserve(batch.size());
  for (std::size_t i = 0; i < batch.size(); ++i)
    all.push_back(with_tensors<Out>(batch[i], std::move(made[i])));
  return all;
}

}  // namespace troupe
