#include "apps/support/onnx_cases.hpp"

#include <troupe/data.hpp>
#include <troupe/graph.hpp>
#include <troupe/inspect.hpp>
#include <troupe/program.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <limits>
#include <new>
#include <optional>

namespace troupe {

namespace fs = std::filesystem;

namespace {

std::string names_of(const std::vector<onnx_port>& ports) {
  std::string all;
  for (const auto& p : ports) all += (all.empty() ? "" : ", ") + shown(p.name);
  return all.empty() ? "none" : all;
}

bool has_input(const onnx_model& m, const std::string& name) {
  return std::ranges::any_of(m.inputs(), [&](const onnx_port& p) { return p.name == name; });
}

double number_at(const tensor& t, std::size_t i) {
  switch (t.type()) {
    case dtype::f32: return static_cast<double>(t.data<float>()[i]);
    case dtype::f64: return t.data<double>()[i];
    case dtype::f16: return static_cast<double>(to_f32(t.data<f16>()[i]));
    case dtype::bf16: return static_cast<double>(to_f32(t.data<bf16>()[i]));
    default: return 0;
  }
}

struct tolerance {
  double absolute, relative;
};
// Of halves two units in the last place: the format's own tests cut bits off, where casts round to
// the nearest, or round after each of several steps. Of products in halves eight units of theirs,
// also of 1: terms may cancel.
tolerance allowed(dtype type, precision_kind p) {
  if (p != precision_kind::f32)
    return p == precision_kind::bf16 ? tolerance{0x1p-5, 0x1p-5} : tolerance{0x1p-8, 0x1p-8};
  return {1e-7, type == dtype::bf16 ? 0x1p-6 : type == dtype::f16 ? 0x1p-9 : 1e-3};
}

// How far two tensors are apart, 1: as far as allowed. An error: what else differs.
result<double> distance(const tensor& got, const tensor& wanted, precision_kind p) {
  const auto refuse = [](std::string text) { return error(error_code::failed, std::move(text)); };
  if (got.spec() != wanted.spec())
    return refuse(
        fmt::format("it is {}, expected {}", to_string(got.spec()), to_string(wanted.spec())));
  const auto type = got.type();
  const auto n = static_cast<std::size_t>(got.elements());
  if (type == dtype::boolean) {
    for (std::size_t i = 0; i < n; ++i)
      if (got.data<boolean>()[i] != wanted.data<boolean>()[i])
        return refuse(fmt::format("element {} is {}", i, bool(got.data<boolean>()[i])));
    return 0.0;
  }
  if (type == dtype::i32 || type == dtype::i64 || type == dtype::u8) {
    const auto each = size_of(type);
    for (std::size_t i = 0; i < n; ++i)
      if (std::memcmp(got.bytes().data() + i * each, wanted.bytes().data() + i * each, each) != 0)
        return refuse(fmt::format("element {} of {} differs", i, to_string(got.spec())));
    return 0.0;
  }
  const auto [absolute, relative] = allowed(type, p);
  double worst = 0;
  for (std::size_t i = 0; i < n; ++i) {
    const auto a = number_at(got, i), b = number_at(wanted, i);
    if (a == b || (std::isnan(a) && std::isnan(b))) continue;
    const auto off = std::abs(a - b) / (absolute + relative * std::abs(b));
    worst = std::isnan(off) || std::isinf(b) ? std::numeric_limits<double>::infinity()
                                             : std::max(worst, off);
  }
  return worst;
}

// input_0.pb, input_1.pb, ... as far as there are files.
std::vector<std::string> numbered(const fs::path& folder, const char* kind) {
  std::vector<std::string> files;
  std::error_code failed;
  for (int i = 0; fs::exists(folder / fmt::format("{}_{}.pb", kind, i), failed); ++i)
    files.push_back((folder / fmt::format("{}_{}.pb", kind, i)).string());
  return files;
}

// Of one data set. nullopt: it passed, with the error in `c`.
std::optional<case_outcome> check_data(session& s, const onnx_model& m, const fs::path& folder,
                                       const device_flags& where, case_outcome& c) {
  const auto refuse = [&](case_outcome::kind type, std::string op, std::string why) {
    c.type = type, c.op = std::move(op), c.why = std::move(why);
    return c;
  };
  named_values inputs;
  std::string unread;
  const auto files = numbered(folder, "input");
  for (std::size_t i = 0; i < files.size() && i < m.inputs().size(); ++i) {
    auto t = load_onnx_tensor(files[i], m.inputs()[i].element == dtype::bf16);
    if (t)
      inputs.emplace_back(m.inputs()[i].name, std::move(*t));
    else if (unread.empty())
      unread = t.error().message();
  }
  std::string missing;
  const auto outputs =
      run_model(s, m, inputs, where, &missing, where.is_on_gpu() ? &c.placed : nullptr);
  if (!outputs)
    return refuse(missing.empty() ? case_outcome::kind::failed : case_outcome::kind::unsupported,
                  missing, missing.empty() && !unread.empty() ? unread : outputs.error().message());
  const auto wanted = numbered(folder, "output");
  if (wanted.empty())
    return refuse(case_outcome::kind::failed, "",
                  fmt::format("there is no output_0.pb in {}", folder.filename().string()));
  if (wanted.size() > outputs->size())
    return refuse(case_outcome::kind::failed, "",
                  fmt::format("{} outputs, expected {}", outputs->size(), wanted.size()));
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    const auto& name = (*outputs)[i].name;
    const auto expected = load_onnx_tensor(wanted[i], (*outputs)[i].values.type() == dtype::bf16);
    if (!expected) return refuse(case_outcome::kind::failed, "", expected.error().message());
    const auto off = distance((*outputs)[i].values, *expected, where.precision);
    if (!off)
      return refuse(case_outcome::kind::failed, "",
                    fmt::format("output '{}': {}", shown(name), off.error().message()));
    c.error = std::max(c.error, *off);
    if (*off > 1)
      return refuse(case_outcome::kind::failed, "",
                    fmt::format("output '{}': the largest error is {:.3g} times what is allowed",
                                shown(name), *off));
  }
  return std::nullopt;
}

case_outcome checked(session& s, const fs::path& path, const device_flags& where, case_outcome c) {
  const auto model = load_onnx((path / "model.onnx").string());
  if (!model) {
    c.type = case_outcome::kind::failed, c.why = model.error().message();
    return c;
  }
  std::error_code failed;
  std::vector<fs::path> sets;
  for (const auto& e : fs::directory_iterator(path, failed))
    if (e.is_directory(failed) && e.path().filename().string().starts_with("test_data_set_"))
      sets.push_back(e.path());
  std::ranges::sort(sets);
  if (sets.empty())
    c.type = case_outcome::kind::failed, c.why = "there is no test_data_set_* in its folder";
  for (const auto& data : sets)
    if (const auto refused = check_data(s, *model, data, where, c)) return *refused;
  return c;
}

// What the compiler makes of the graph, which is what runs.
result<placed_ops> count_ops(graph& g, std::span<const value> fetches, const compile_options& how) {
  const auto made = plan_steps(g, fetches, how);
  if (!made) return made.error();
  placed_ops out;
  for (const auto& a : made->plan.actors) {
    if (a.kind != actor_kind::op) continue;
    if (is_device_stream(a.stream))
      out.on_device += a.ops.size();
    else
      for (const auto& op : a.ops) ++out.on_host[op.type];
  }
  return out;
}

// A file of holes is as large as it says.
result<tensor> read_array(const std::string& path) {
  try {
    return load_npy(path);
  } catch (const std::bad_alloc&) {
    return error(error_code::failed, fmt::format("{}: there is no memory for its array", path));
  }
}

}  // namespace

result<named_values> read_inputs(const onnx_model& m, const onnx_options& o) {
  named_values all;
  const auto has = [&](const std::string& name) {
    return std::ranges::any_of(all, [&](const auto& p) { return p.first == name; });
  };
  std::vector<std::string> in_order;
  for (const auto& given : o.inputs) {
    const auto equals = given.find('=');
    const auto name = given.substr(0, equals);
    const bool is_named = equals != std::string::npos && has_input(m, name);
    if (!is_named) {
      std::error_code failed;
      if (equals != std::string::npos && !fs::exists(given, failed))
        return error(error_code::not_found,
                     fmt::format("--input {}: there is no input '{}'; the model's are: {}", given,
                                 name, names_of(m.inputs())));
      in_order.push_back(given);
      continue;
    }
    if (has(name))
      return error(error_code::usage, fmt::format("--input {}: '{}' is given twice", given, name));
    auto t = read_array(given.substr(equals + 1));
    if (!t) return t.error();
    all.emplace_back(name, std::move(*t));
  }
  auto next = in_order.begin();
  for (const auto& p : m.inputs()) {
    if (has(p.name)) continue;
    if (next == in_order.end())
      return error(error_code::usage, fmt::format("input '{}' is missing; the model's are: {}",
                                                  shown(p.name), names_of(m.inputs())));
    auto t = read_array(*next++);
    if (!t) return t.error();
    all.emplace_back(p.name, std::move(*t));
  }
  if (next != in_order.end())
    return error(error_code::usage, fmt::format("--input {} is one too many; the model's are: {}",
                                                *next, names_of(m.inputs())));
  return all;
}

result<void> try_device(session& s, const device_flags& where) {
  graph g(s.ops());
  const auto x = input(g, tensor_spec{dtype::f32, {1}}, "x");
  const auto y = x + x;
  compile_options how{.name = "device"};
  where.set(how);
  auto run = s.compile(g, std::span(&y, 1), how);
  if (!run) return std::move(run.error());
  const auto got =
      (*run)->step(std::vector<std::pair<std::string_view, tensor>>{{"x", tensor::of({1}, {1})}});
  return got ? result<void>() : got.error();
}

result<std::vector<named_tensor>> run_model(session& s, const onnx_model& m,
                                            const named_values& inputs, const device_flags& where,
                                            std::string* missing, placed_ops* placed,
                                            timed_steps* timed) {
  graph g(s.ops());
  const auto built = m.build(g, {.values = inputs}, missing);
  if (!built) return error(built.error().code(), built.error().message());
  if (built->outputs.empty()) return error(error_code::usage, "the model has no outputs");
  std::vector<value> fetches;
  for (const auto& o : built->outputs) fetches.push_back(o.at);
  compile_options how{.name = "onnx"};
  where.set(how);
  if (placed != nullptr) {
    auto counted = count_ops(g, fetches, how);
    if (!counted) return std::move(counted.error());
    *placed = std::move(*counted);
  }
  auto run = s.compile(g, fetches, how);
  if (!run) return run.error();
  const auto step = [&]() -> result<std::vector<tensor>> {
    for (const auto& i : built->inputs) {
      const auto given = std::ranges::find(inputs, i.name, &std::pair<std::string, tensor>::first);
      if (given == inputs.end())
        return error(error_code::usage, fmt::format("input '{}' is missing", shown(i.name)));
      if (auto fed = (*run)->feed(g.node(i.at.node).name, given->second); !fed) return fed.error();
    }
    return (*run)->fetch();
  };
  auto values = step();
  if (!values) return values.error();
  for (int i = 0; timed != nullptr && i < timed->wanted; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    if (const auto again = step(); !again) return again.error();
    timed->ms.push_back(
        std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin)
            .count());
  }
  std::vector<named_tensor> out;
  for (std::size_t i = 0; i < values->size(); ++i)
    out.push_back({built->outputs[i].name, std::move((*values)[i])});
  return out;
}

result<void> save_model(session& s, const onnx_model& m, const named_values& inputs,
                        const std::string& path) {
  graph g(s.ops());
  const auto built = m.build(g, {.values = inputs});
  if (!built) return error(built.error().code(), built.error().message());
  if (!built->fixed.empty())
    fmt::print(stderr,
               "onnx_run: the saved model holds for these values of {} alone: its ops take them "
               "while the graph is built\n",
               fmt::join(built->fixed, ", "));
  auto saved = save_onnx(g, built->outputs, path, {.inputs = built->inputs});
  if (!saved) return error(saved.error().code(), saved.error().message());
  return saved;
}

result<std::vector<std::string>> find_cases(const std::vector<std::string>& folders) {
  std::vector<std::string> cases;
  for (const auto& folder : folders) {
    std::error_code failed;
    if (!fs::is_directory(folder, failed))
      return error(error_code::not_found, fmt::format("{}: no such folder", folder));
    std::vector<std::string> here;
    if (fs::is_regular_file(fs::path(folder) / "model.onnx", failed)) here.push_back(folder);
    for (fs::recursive_directory_iterator
             at(folder, fs::directory_options::skip_permission_denied, failed),
         end;
         !failed && at != end; at.increment(failed))
      if (at->is_directory(failed) && fs::is_regular_file(at->path() / "model.onnx", failed))
        here.push_back(at->path().string());
    if (here.empty())
      return error(error_code::not_found,
                   fmt::format("{}: no folder with a model.onnx in it", folder));
    std::ranges::sort(here);
    cases.insert(cases.end(), here.begin(), here.end());
  }
  return cases;
}

case_outcome check_case(session& s, const std::string& folder, const device_flags& where) {
  const auto path = fs::path(folder).lexically_normal();
  case_outcome c;
  c.name = (path.has_filename() ? path : path.parent_path()).filename().string();
  try {
    return checked(s, path, where, c);
  } catch (const std::bad_alloc&) {  // the others may need less
    c.type = case_outcome::kind::failed, c.why = "there is no memory left for it";
    return c;
  }
}

}  // namespace troupe
