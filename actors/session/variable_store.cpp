#include "troupe/actors/session/variable_store.hpp"

#include "troupe/actors/base/scheduler.hpp"
#include "troupe/actors/session/job_client.hpp"
#include "troupe/actors/session/store_actor.hpp"
#include "troupe/devices/files/safetensors.hpp"
#include "troupe/runtime/checkpoint/checkpoint_store.hpp"
#include "troupe/runtime/graph/initializers.hpp"
#include "troupe/runtime/plan/precision.hpp"
#include "troupe/runtime/stores/store_files.hpp"
#include "troupe/runtime/text/near_names.hpp"
#include "troupe/runtime/text/printable.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <span>

namespace troupe {
namespace {

// The store's mailbox for one call of the program.
class store_call {
 public:
  store_call(process& p, const caf::actor& store)
      : process_(p), store_(store), waits_(static_cast<pinned_scheduler&>(p.system().scheduler())) {
    if (!p.is_forked()) self_.emplace(p.system());  // PX-2
  }

  store_told look() {
    if (process_.is_forked()) return {};
    tell(nullptr, store_, store_look{self_->handle()});
    store_told out;
    (*self_)->receive([&](store_told& m) { out = std::move(m); });
    after_message();
    return out;
  }

  // `make` says what becomes of the variables of these names, or of all that are there, once it is
  // this call's turn.
  result<void> change(
      store_request r,
      const std::function<result<std::vector<stored_variable>>(const store_view& there)>& make) {
    if (process_.is_forked()) return process_.check_is_there();
    const auto id = r.id = (*self_)->id();
    r.makes = true;
    tell(nullptr, store_, store_begin{std::move(r), self_->handle()});
    std::optional<store_grant> granted;
    (*self_)->receive([&](store_granted& m) { granted = std::move(m.grant); });
    after_message();
    auto made = [&]() -> result<std::vector<stored_variable>> {
      try {
        return make(granted->writes);
      } catch (const std::bad_alloc&) {
        return error(error_code::failed, "no memory is left for the variables");
      } catch (...) {
        tell(nullptr, store_, store_give_up{id});
        throw;
      }
    }();
    if (!made || made->empty()) {
      tell(nullptr, store_, store_give_up{id});
      return made ? result<void>() : std::move(made.error());
    }
    tell(nullptr, store_, store_commit{id, std::move(*made)});
    return {};
  }

 private:
  const process& process_;
  const caf::actor& store_;
  pinned_scheduler::waiter waits_;
  std::optional<mailbox> self_;  // nothing in a child of fork()
};

const stored_variable* variable_in(const store_view& view, std::string_view name) {
  const auto at = std::ranges::find(view.variables, name, &stored_variable::name);
  return at != view.variables.end() ? &*at : nullptr;
}

stored_variable new_variable(std::string name, tensor value) {
  return {std::move(name),
          std::make_shared<const variable_entry>(variable_entry{{std::move(value)}, {}}), 0};
}

// The program keeps its own, and the store writes into what it has.
tensor copy_of(const tensor& t) {
  auto out = tensor::make(t.spec());
  std::ranges::copy(t.bytes(), out.bytes().begin());
  return out;
}

std::string quoted_list_of(const std::vector<std::string>& names) {
  constexpr std::size_t most = 8;
  const auto told = static_cast<std::ptrdiff_t>(std::min(names.size(), most));
  return printable(fmt::format(
      "'{}'{}", fmt::join(names.begin(), names.begin() + told, "', '"),
      names.size() > most ? fmt::format(" and {} more", names.size() - most) : std::string()));
}

class variable_store_impl final : public variable_store {
 public:
  variable_store_impl(process& p, std::shared_ptr<const store_core> core)
      : process_(p), core_(std::move(core)) {}

  std::shared_ptr<const store_core> core() const override { return core_; }

  result<void> initialize(const graph& g, std::uint64_t seed) override {
    if (g.first_error()) return *g.first_error();
    std::vector<const graph_node*> wanted;
    std::vector<std::string> names;
    for (const auto& n : g.nodes()) {
      if (n.type != "variable") continue;
      if (!is_stored_name(n.name))
        return error(error_code::usage,
                     fmt::format("a variable cannot be called '{}', which means something else in "
                                 "files",
                                 n.name))
            .at(n.source);
      wanted.push_back(&n);
      names.push_back(n.name);
    }
    if (wanted.empty()) return {};
    return call().change(
        {.writes = std::move(names)},
        [&](const store_view& there) -> result<std::vector<stored_variable>> {
          std::vector<stored_variable> out;
          for (const auto* n : wanted) {
            const auto& spec = n->outputs[0];
            if (const auto* known = variable_in(there, n->name)) {
              if (known->entry->value.now.spec() != spec)
                return error(
                           error_code::usage,
                           fmt::format("variable '{}' is {}, and the store has it as {}", n->name,
                                       to_string(spec), to_string(known->entry->value.now.spec())))
                    .at(n->source);
              continue;
            }
            auto t = tensor::make(spec);
            troupe::initialize({t.data<float>(), static_cast<std::size_t>(t.elements())},
                               n->initializer.value_or(initializer_spec{}), seed, n->name);
            out.push_back(new_variable(n->name, std::move(t)));
          }
          return out;
        });
  }

  result<void> set(std::string_view name, tensor value) override {
    return set({{std::string(name), std::move(value)}});
  }

  result<void> set(std::vector<std::pair<std::string, tensor>> values) override {
    std::vector<std::string> names;
    for (const auto& [name, value] : values) {
      if (!is_stored_name(name))
        return error(
            error_code::usage,
            fmt::format("'{}' is no name of a variable, which consists of letters, digits, "
                        "'_', '-', '.' and '/'",
                        printable(name)));
      if (std::ranges::count(names, name))
        return error(error_code::usage, fmt::format("variable '{}' is set twice", name));
      if (!value || value.type() != dtype::f32 || value.on_device() != nullptr)
        return error(error_code::usage,
                     fmt::format("variable '{}' was given {}, but takes f32 in the host's memory",
                                 name, value ? to_string(value.spec()) : "no tensor"));
      names.push_back(name);
    }
    if (values.empty()) return {};
    return call().change(
        {.writes = std::move(names)},
        [&](const store_view& there) -> result<std::vector<stored_variable>> {
          std::vector<stored_variable> out;
          for (auto& [name, value] : values) {
            const auto* known = variable_in(there, name);
            if (known == nullptr) {
              out.push_back(new_variable(name, copy_of(value)));
              continue;
            }
            const auto& before = known->entry->value.now.spec();
            if (before != value.spec())
              return error(error_code::usage,
                           fmt::format("variable '{}' is {}, and was given {}", name,
                                       to_string(before), to_string(value.spec())));
            variable_entry next{{copy_of(value)}, known->entry->states};
            out.push_back({name, std::make_shared<const variable_entry>(std::move(next)), 0});
          }
          return out;
        });
  }

  result<tensor> get(std::string_view name) const override {
    const auto view = call().look().view;
    if (const auto* v = variable_in(view, name)) return copy_of(v->entry->value.now);
    std::vector<std::string_view> names;
    for (const auto& v : view.variables) names.push_back(v.name);
    return error(error_code::not_found, printable(fmt::format("the store has no variable '{}'{}",
                                                              name, near_names(name, names))));
  }

  store_snapshot snapshot() const override {
    const auto view = call().look().view;
    store_snapshot out{view.version, {}};
    for (const auto& v : view.variables) out.variables.emplace_back(v.name, v.entry->value.now);
    return out;
  }

  std::vector<variable_info> variables() const override {
    std::vector<variable_info> out;
    for (const auto& v : call().look().view.variables)
      out.push_back({v.name, v.entry->value.now.spec(), v.version});
    return out;
  }

  std::uint64_t version() const override { return call().look().view.version; }

  result<load_report> load(const std::string& path, const load_options& options) override {
    try {
      load_report report;
      auto loaded = read(path, options, report.step);
      if (!loaded) return std::move(loaded.error());
      auto changed = call().change(
          {.all = true}, [&](const store_view& there) -> result<std::vector<stored_variable>> {
            auto fits = fit(std::move(*loaded), there, path);
            if (!fits) return std::move(fits.error());
            if (options.strict && !(fits->missing.empty() && fits->unused.empty()))
              return error(
                  error_code::usage,
                  fmt::format("{}: {}{}{} (nothing was loaded; load_options::strict = false takes "
                              "what is there)",
                              path,
                              fits->missing.empty()
                                  ? std::string()
                                  : "it lacks " + quoted_list_of(fits->missing) + " of the store",
                              fits->missing.empty() || fits->unused.empty() ? "" : ", and ",
                              fits->unused.empty()
                                  ? std::string()
                                  : "the store has no " + quoted_list_of(fits->unused)));
            for (const auto& c : fits->changes) report.loaded.push_back(c.name);
            report.missing = std::move(fits->missing);
            report.unused = std::move(fits->unused);
            return std::move(fits->changes);
          });
      if (!changed) return std::move(changed.error());
      return report;
    } catch (const std::bad_alloc&) {
      return error(error_code::failed, fmt::format("{}: no memory is left to load it", path));
    }
  }

  result<void> save(const std::string& path, const save_options& options) const override {
    try {
      return save_safetensors(path, tensors_of(call().look().view, options.optimizers));
    } catch (const std::bad_alloc&) {
      return error(error_code::failed, fmt::format("{}: no memory is left to save it", path));
    }
  }

 private:
  store_call call() const { return {process_, core_->actor()}; }

  result<std::vector<loaded_variable>> read(const std::string& path, const load_options& options,
                                            std::uint64_t& step) const {
    unnamed_state unnamed;
    std::vector<named_tensor> tensors;
    std::error_code ignored;
    if (std::filesystem::is_directory(path, ignored)) {
      auto found = newest_checkpoint(path, unnamed);
      if (!found) return std::move(found.error());
      tensors = std::move(*found);
      step = unnamed.updates;
    } else {
      auto found = load_safetensors(path);
      if (!found) return std::move(found.error());
      tensors = std::move(*found);
    }
    if (auto ok = rename(tensors, options, path); !ok) return std::move(ok.error());
    return variables_of(std::move(tensors), path, unnamed);
  }

  result<std::vector<named_tensor>> newest_checkpoint(const std::string& path,
                                                      unnamed_state& unnamed) const {
    auto folder = checkpoint_store::at_folder(process_.files(), path);
    auto newest = folder.latest_whole();
    if (!newest) return std::move(newest.error());
    if (!newest->manifest)
      return error(error_code::not_found,
                   fmt::format("{}: there is no whole checkpoint of a job{}", path,
                               newest->passed_over.empty() ? std::string()
                                                           : ": " + newest->passed_over.front()));
    const auto& m = *newest->manifest;
    unnamed.updates = m.step;
    bool scales_loss = false;
    for (const auto& [name, value] : m.schedule) {
      if (name == "optimizer") unnamed.optimizer = value;
      if (name == loss_scale_name) scales_loss = true;
    }
    std::vector<named_tensor> out;
    for (const auto& part : m.parts) {
      auto read = folder.load_part({m.epoch, m.step}, part);
      if (!read) return std::move(read.error());
      std::ranges::move(*read, std::back_inserter(out));
    }
    // What a training has for itself.
    if (scales_loss)
      std::erase_if(out, [](const named_tensor& t) {
        return split_tensor_name(t.name).first == loss_scale_name;
      });
    return out;
  }

  static result<void> rename(std::vector<named_tensor>& tensors, const load_options& options,
                             const std::string& path) {
    std::map<std::string_view, std::string_view> names;
    std::set<std::string_view> found;
    for (const auto& [from, to] : options.names) {
      if (!is_stored_name(to))
        return error(error_code::usage,
                     printable(fmt::format("{}: '{}' is to be '{}', which is no name of a variable",
                                           path, from, to)));
      if (!names.emplace(from, to).second)
        return error(error_code::usage,
                     printable(fmt::format("{}: '{}' is to have two names", path, from)));
    }
    for (auto& t : tensors) {
      const auto [name, slot] = split_tensor_name(t.name);
      const auto at = names.find(name);
      if (at == names.end()) continue;
      found.insert(at->first);
      t.name = slot.empty() ? std::string(at->second) : fmt::format("{}#{}", at->second, slot);
    }
    for (const auto& [from, to] : names) {
      if (found.contains(from)) continue;
      std::vector<std::string_view> there;
      for (const auto& t : tensors) there.push_back(t.name);
      return error(error_code::usage,
                   printable(fmt::format("{}: it has no '{}', which is to be '{}'{}", path, from,
                                         to, near_names(from, there))));
    }
    return {};
  }

  process& process_;
  std::shared_ptr<const store_core> core_;
};

}  // namespace

std::unique_ptr<variable_store> make_variable_store(process& p) {
  return std::make_unique<variable_store_impl>(p, std::make_shared<const store_core>(p));
}

}  // namespace troupe
