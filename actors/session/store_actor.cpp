#include "troupe/actors/session/store_actor.hpp"

#include "troupe/actors/base/scheduler.hpp"

#include <caf/stateful_actor.hpp>

#include <unordered_map>

namespace troupe {
namespace {

struct store_actor_state {
  static inline const char* name = "store";
  caf::stateful_actor<store_actor_state>* self = nullptr;
  store_state store{};
  std::unordered_map<std::uint64_t, caf::actor> waiting{};  // whom grants are told to

  void grant(std::vector<store_grant> grants) {
    for (auto& g : grants) {
      const auto to = waiting.extract(g.id);
      if (!to.empty()) tell(self->context(), to.mapped(), store_granted{std::move(g)});
    }
  }
  void take(store_begin& m) {
    const auto id = m.request.id;
    const auto to = waiting.insert_or_assign(id, std::move(m.to)).first->second;
    auto grants = store.begin(std::move(m.request));
    if (grants) return grant(std::move(*grants));
    waiting.erase(id);
    tell(self->context(), to, store_refused{id, std::move(grants.error())});
  }
  void take(const store_give_up& m) {
    waiting.erase(m.id);
    grant(store.give_up(m.id));
  }
};

caf::behavior run_store(caf::stateful_actor<store_actor_state>* self) {
  auto& s = self->state;
  s.self = self;
  return {
      [&s](store_begin& m) { s.take(m); },
      [&s](store_commit& m) { s.grant(s.store.commit(m.id, std::move(m.changes))); },
      [&s](const store_give_up& m) { s.take(m); },
      [&s](const store_look& m) {
        tell(s.self->context(), m.to, store_told{s.store.all(), s.store.counts()});
      },
      [self](store_end) { self->quit(); },
  };
}

}  // namespace

store_core::store_core(process& p)
    : keeps_(p.weak_from_this().lock()),
      process_(p),
      actor_(spawn_on(p.system(), static_cast<pinned_scheduler&>(p.system().scheduler()).service(),
                      &run_store)) {
  forget_logger();
}

}  // namespace troupe
