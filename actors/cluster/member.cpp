#include "troupe/actors/cluster/member.hpp"

#include "troupe/actors/base/failing.hpp"
#include "troupe/actors/base/scheduler.hpp"
#include "troupe/actors/base/tell.hpp"

#include <caf/actor_system.hpp>
#include <caf/event_based_actor.hpp>
#include <caf/stateful_actor.hpp>
#include <fmt/format.h>

#include <algorithm>

namespace troupe {

namespace {

constexpr std::int64_t tick_ns = 20'000'000;
constexpr std::int64_t dial_timeout_ns = 1'000'000'000;
// While young: others start at the same moment.
constexpr std::int64_t look_often_ns = 100'000'000;
constexpr std::int64_t look_seldom_ns = 1'000'000'000;
constexpr std::int64_t young_ns = 3'000'000'000;
constexpr std::int64_t goodbye_ns = 100'000'000;  // for the last frames to leave
constexpr std::int64_t stood_still_blames_ns = 3'000'000'000;
// Longer than any tick takes; others begin to doubt us.
constexpr std::int64_t stood_still_ns = 500'000'000;
constexpr std::int64_t half_open_max_ns = 5'000'000'000;  // of a link that begins
// A dial that has not got through by then may lead nowhere, and keeps the peer's own out no longer.
constexpr std::int64_t crossing_ns = 300'000'000;
// Lines about connections that were refused: seldom where there is no end of them, so that they do
// not drive other events out.
constexpr std::int64_t tell_refused_ns = 1'000'000'000;
constexpr std::int64_t tell_refused_max_ns = 64'000'000'000;
constexpr std::size_t refused_origins_max = 64;
constexpr std::size_t refused_origins_told = 4;

// How far an address of this machine reaches: nowhere, this machine, its network, beyond.
int reach_of(const address& a) {
  if (a.host.empty() || a.host == "?" || is_wildcard(a)) return 0;
  return is_loopback(a) ? 1 : is_link_local(a) ? 2 : 3;
}

int reach_of(const std::string& text) {
  const auto a = parse_address(text);
  return a ? reach_of(*a) : 0;
}

// Where a process of this machine reaches who listens at `at`.
address seen_from_here(const address& at) {
  if (!is_wildcard(at)) return at;
  return {is_ipv4(at.host) ? "127.0.0.1" : "::1", at.port};
}

}  // namespace

// A connection until its handshake is done.
struct member_core::greeter final : channel_handler {
  greeter(member_core& c, std::uint64_t n, std::unique_ptr<channel> ch, handshake h, bool initiates,
          std::string to, node_id whom, troupe::lane l)
      : core(c),
        number(n),
        connection(std::move(ch)),
        shake(std::move(h)),
        is_initiator(initiates),
        dialled(std::move(to)),
        expected(whom),
        which(l) {}

  std::span<std::byte> payload_destination(frame_kind, std::span<const std::byte>,
                                           std::uint32_t) override {
    return {};
  }
  void on_frame(const received_frame& f) override {
    if (f.kind == frame_kind::hello) shake.bind_to(connection->binding());
    shake.on_frame(f.kind, f.header);
    core.advance(*this);
  }
  void on_closed(const error& why, frame_fault fault) override {
    shake.on_closed(why, fault);
    core.advance(*this);
  }

  member_core& core;
  std::uint64_t number;
  std::unique_ptr<channel> connection;
  handshake shake;
  bool is_initiator;
  std::string dialled;
  node_id expected;
  troupe::lane which;
  own_probe word;  // of this connection
  bool is_trusted = false;
};

static std::uint64_t random_word(const std::function<void(std::span<std::byte>)>& random) {
  std::uint64_t word = 0;
  random(std::as_writable_bytes(std::span(&word, 1)));
  return word;
}

member_core::member_core(member_environment environment)
    : env_(std::move(environment)), is_alive_(std::make_shared<bool>(true)) {
  // What is recorded before the first tick is not hours old.
  env_.clock->set(static_cast<std::uint64_t>(now()));
}

member_core::~member_core() { *is_alive_ = false; }

result<address> member_core::listen(const address& at) {
  auto actual = env_.net->listen(at, [this](std::unique_ptr<channel> c) {
    greet(std::move(c), false, "", {}, lane::control);
  });
  if (!actual) return actual;
  listens_at_ = *actual;
  if (!env_.announced.empty()) {
    auto told = parse_address(env_.announced);
    if (!told) return told;
    if (told->port == 0) told->port = actual->port;
    env_.self.address = to_string(*told);
  } else if (!is_wildcard(*actual)) {
    env_.self.address = to_string(*actual);
  }
  return actual;
}

// ME-6.
void member_core::settle_address(const address& here) {
  if (!env_.announced.empty() || !is_wildcard(listens_at_) || here.port == 0) return;
  // Nobody listens there.
  if (is_ipv4(listens_at_.host) && !is_ipv4(here.host)) return;
  const auto now_told = membership_->self().address;
  if (reach_of(here) <= reach_of(now_told)) return;
  const auto text = to_string(address{here.host, listens_at_.port});
  say(fmt::format("listens at {}, and tells others that it is reached at {}{}",
                  to_string(listens_at_), text,
                  reach_of(here) == 1 ? " (until another machine meets it)" : ""));
  membership_->set_address(text, now());
  env_.self = membership_->self();
  run_actions();
  publish_view();
}

void member_core::start(caf::actor_system& sys, caf::execution_unit* worker, caf::actor_addr self,
                        caf::actor node) {
  actor_ = std::move(self);
  supervision_.start(now());
  system_ = &sys;
  worker_ = worker;
  node_ = std::move(node);
  started_ns_ = now();
  env_.options.tick_ns = tick_ns;
  membership_ = std::make_unique<membership>(env_.self, env_.options, now(), env_.bugs);
  env_.self = membership_->self();
  for (const auto& s : env_.seeds) membership_->add_seed(s, true, now());
  announce();
  publish_view();
  if (!env_.warning.empty()) say_warning(env_.warning);
  tick();
}

void member_core::announce() {
  if (env_.places == nullptr) return;
  auto here = env_.self;  // for this machine
  if (listens_at_.port != 0) here.address = to_string(seen_from_here(listens_at_));
  if (auto announced = env_.places->announce(here); !announced)
    say_warning("others will not find this process: " + announced.error().text());
}

void member_core::set_jobs(std::uint32_t jobs) {
  membership_->set_jobs(jobs);
  run_actions();
}

void member_core::leave(const std::string& reason, std::function<void()> then) {
  has_left_ = true;
  membership_->leave(reason);
  run_actions();
  env_.net->after(goodbye_ns, [this, alive = is_alive_, then = std::move(then)] {
    if (!*alive) return;
    env_.net->cancel(timer_);
    env_.net->stop_listening();
    greeters_.clear();
    while (!links_.empty()) close_link(links_.begin()->first);
    node_ = nullptr;
    then();
  });
}

void member_core::tick() {
  const auto waited = env_.waited_for_cpu_ns ? env_.waited_for_cpu_ns() : 0;
  if (const auto gap = now() - ticked_ns_; ticked_ns_ != 0 && gap > stood_still_ns)
    stood_still_ = {gap, waited - waited_for_cpu_ns_, now()};
  ticked_ns_ = now();
  waited_for_cpu_ns_ = waited;
  env_.clock->set(static_cast<std::uint64_t>(now()));
  tell(worker_, node_, node_tick{});
  timer_ = env_.net->after(tick_ns, [this, alive = is_alive_] {
    if (*alive && !has_left_) tick();
  });
  tick_links();
  tell_refused();
  look_around();
  std::vector<std::uint64_t> waiting;
  for (auto& [n, g] : greeters_) waiting.push_back(n);
  for (auto n : waiting)  // what follows from the end of one may end others
    if (auto at = greeters_.find(n);
        at != greeters_.end() && at->second->shake.on_time(now()) == handshake::status::refused)
      advance(*at->second);
  std::vector<node_id> half_open;  // membership does not know them, and so would never end them
  for (const auto& [id, l] : links_)
    if (!l.is_tool && !l.core->session().is_up() && now() - l.since_ns > half_open_max_ns &&
        membership_->find(id) == nullptr)
      half_open.push_back(id);
  for (auto id : half_open) close_link(id);
  std::vector<node_id> linked;
  for (const auto& [id, l] : links_) linked.push_back(id);
  for (auto id : linked) tick_link(id);
  membership_->tick(now());
  run_actions();
}

// What it does may end this link and others.
void member_core::tick_link(node_id id) {
  if (auto at = links_.find(id); at != links_.end()) {
    const auto core = at->second.core;
    core->on_tick();
  }
  for (auto which : {lane::control, lane::data}) {
    const auto at = links_.find(id);
    if (at == links_.end()) return;
    auto& session = at->second.core->session();
    if (at->second.is_tool || !session.dial_due(which, now())) continue;
    auto to = membership_->address_of(id);
    if (to.empty()) to = at->second.core->peer().address;
    if (to.empty()) continue;  // it dials
    session.dialing(which);
    dial(to, id, which);
  }
}

void member_core::look_around() {
  if (env_.places == nullptr || now() < look_at_ns_) return;
  look_at_ns_ = now() + (now() - started_ns_ < young_ns ? look_often_ns : look_seldom_ns);
  std::vector<node_id> known{env_.self.id};
  for (const auto& m : membership_->members()) known.push_back(m.id);
  for (const auto& [id, l] : links_) known.push_back(id);
  std::ranges::sort(known);
  env_.places->look(std::move(known), [this, alive = is_alive_](const auto& found) {
    if (!*alive || has_left_) return;
    const auto is_members = [&](const std::string& place) {
      return place == env_.self.address ||
             std::ranges::any_of(membership_->members(),
                                 [&](const auto& m) { return is_living(m) && m.address == place; });
    };
    for (const auto& p : found)
      if (raw(p.id) == 0) {
        if (named_.size() >= env_.options.seeds_max) named_.clear();
        named_.insert(p.address);
        if (!is_members(p.address)) membership_->add_seed(p.address, false, now());
      } else if (p.id != env_.self.id && membership_->find(p.id) == nullptr &&
                 !links_.contains(p.id)) {
        membership_->add_seed(p.address, false, now(), p.id);
      }
  });
}

// --- connections ---------------------------------------------------------------------------------

void member_core::dial(const std::string& to, node_id expected, lane l) {
  if (!dialing_.try_emplace({to, l}, dial_in_progress{expected, now()}).second) return;
  auto at = parse_address(to);
  if (!at) return dial_failed(to, expected, l, dial_failure::other, at.error().message());
  env_.net->connect(
      *at, dial_timeout_ns,
      [this, alive = is_alive_, to, expected, l](result<std::unique_ptr<channel>> c) {
        if (!*alive || has_left_) return;
        if (c) return greet(std::move(*c), true, to, expected, l);
        const bool is_refused = c.error().message().find("refused") != std::string::npos;
        dial_failed(to, expected, l, is_refused ? dial_failure::refused : dial_failure::other,
                    c.error().message());
      });
}

void member_core::dial_failed(const std::string& to, node_id expected, lane l, dial_failure why,
                              const std::string& text) {
  dialing_.erase({to, l});
  if (auto at = links_.find(expected); at != links_.end())
    at->second.core->session().dial_failed(l, now());
  membership_->dial_failed(expected, to, why, now(), text);
  run_actions();
}

void member_core::greet(std::unique_ptr<channel> c, bool is_initiator, std::string dialled,
                        node_id expected, lane l) {
  if (has_left_ || membership_ == nullptr) return;
  if (is_initiator) settle_address(c->local_address());
  handshake_options o;
  o.role = is_initiator ? handshake_role::initiator : handshake_role::acceptor;
  o.cluster = env_.cluster;
  o.token = env_.token;
  o.self = membership_->self();
  env_.random(o.nonce);
  o.lane = l;
  o.expected = expected;
  own_probe word;
  if (env_.reads != direct_reads::off && c->is_within_machine())
    word = own_probe(random_word(env_.random));
  o.probe = word.where();
  if (auto at = links_.find(expected); is_initiator && at != links_.end()) {
    o.link = at->second.number;
    o.begins = false;
    o.received = at->second.core->session().received(l);
  } else {
    env_.random(std::as_writable_bytes(std::span(&o.link, 1)));
  }
  const auto number = ++last_greeter_;
  auto g = std::make_unique<greeter>(*this, number, std::move(c), handshake(std::move(o), now()),
                                     is_initiator, std::move(dialled), expected, l);
  auto& ref = *g;
  ref.word = std::move(word);
  greeters_.emplace(number, std::move(g));
  ref.connection->start(ref);
  advance(ref);
}

void member_core::advance(greeter& g) {
  for (;;) {
    for (auto& f : g.shake.take_outgoing())
      g.connection->send({f.kind, 0, 0, std::move(f.header), {}, 0, 0});
    if (!g.is_trusted && g.shake.is_proven()) {
      g.is_trusted = true;
      g.connection->trust_peer();
      if (!g.is_initiator) settle_address(g.connection->local_address());
    }
    switch (g.shake.state()) {
      case handshake::status::running: return;
      case handshake::status::decide: {
        if (g.shake.expects_another()) {
          g.shake.accept(0);
          continue;
        }
        auto at = links_.find(g.shake.peer().id);
        const auto* known = at != links_.end() ? &at->second.core->session() : nullptr;
        const bool is_same = known != nullptr && at->second.number == g.shake.link();
        // Two that dial each other at once would each replace the other's connection, again and
        // again: that of the smaller id stays. Nor may a dial replace what was connected while it
        // was on its way, be it of another link.
        const bool crosses = is_dialling(g.shake.peer(), g.shake.lane()) &&
                             raw(membership_->self().id) < raw(g.shake.peer().id);
        const bool is_late =
            is_same ? !known->can_connect(g.shake.lane(), g.shake.peer_received())
                    : known != nullptr && known->state(g.shake.lane()) == lane_state::up;
        if (crosses || is_late) {
          g.shake.refuse(refusal::crossing,
                         "this process already has this lane of the link, or is "
                         "dialling it");
          continue;
        }
        if (!is_same) {  // ME-4
          give_up_link(g.shake.peer().id, "the peer has given it up");
          if (!g.shake.begins()) {
            const auto* gone = membership_->find(g.shake.peer().id);
            if (gone != nullptr && !is_living(*gone))
              g.shake.refuse(refusal::held_dead,
                             fmt::format("{} holds {} {}: {}", env_.self.name, gone->name,
                                         to_string(gone->state), gone->reason));
            else
              g.shake.refuse(refusal::forgotten,
                             "this process has given up the link that this connection belongs to");
            continue;
          }
        }
        g.shake.accept(is_same ? known->received(g.shake.lane()) : 0);
        continue;
      }
      case handshake::status::established: return established(g);
      case handshake::status::refused: return refused(g);
    }
  }
}

// By its address, or by another name of it.
bool member_core::is_dialling(const member_info& peer, lane l) const {
  return std::ranges::any_of(dialing_, [&](const auto& d) {
    const auto& [to, which] = d.first;
    return which == l && now() - d.second.since_ns < crossing_ns &&
           (d.second.expected == peer.id || to == peer.address);
  });
}

void member_core::drop(greeter& g) {
  // Kept until the callback that brought us here has returned.
  std::shared_ptr<greeter> gone = std::move(greeters_.at(g.number));
  greeters_.erase(gone->number);
  if (gone->connection) gone->connection->close();
  env_.net->after(0, [gone] {});
}

void member_core::refused(greeter& g) {
  ++refused_[g.shake.why()];
  const auto text = g.shake.reason().text();
  if (g.is_initiator) {
    const auto why = g.shake.why();
    // These pass by themselves.
    const bool is_verdict = why != refusal::lost && why != refusal::crossing &&
                            why != refusal::forgotten && why != refusal::held_dead;
    const auto dialled = g.dialled;
    const auto expected = g.expected;
    const auto which = g.which;
    if (is_verdict) {
      say_once(fmt::format("refused at {}: {}", dialled, text));
      // A member may stand in the list of seeds that all members are given.
      if (g.shake.reason().code() == error_code::denied && why != refusal::itself) {
        denied_ = fmt::format("{}: {}", dialled, text);
        publish_view();
        const bool is_seed =
            std::ranges::find(env_.seeds, dialled) != env_.seeds.end() || named_.contains(dialled);
        if (is_seed && membership_->members().empty() && env_.on_denied)
          env_.on_denied(error(error_code::denied, denied_));
      }
    }
    const auto number = g.shake.link();
    drop(g);
    if (const auto* m = membership_->find(expected);
        why == refusal::held_dead && m != nullptr && is_living(*m)) {
      // As if it had fenced us on a link; of two that hold each other dead the weights decide, on a
      // link that begins.
      membership_->on_fenced(expected, fenced{text, 0, 0, 0, {}}, now());
      return run_actions();
    }
    const auto at = links_.find(expected);
    if (why == refusal::forgotten && at != links_.end() && at->second.number == number)
      give_up_link(expected, "the peer has given it up");
    return dial_failed(dialled, expected, which,
                       why == refusal::itself ? dial_failure::itself : dial_failure::other, text);
  }
  count_refused(g);
  drop(g);
}

// Who called us and could not prove itself.
void member_core::count_refused(const greeter& g) {
  const auto why = g.shake.why();
  const bool is_stranger =
      !g.shake.is_by_peer() &&
      (why == refusal::wrong_token || why == refusal::malformed || why == refusal::wrong_cluster ||
       why == refusal::wrong_version || why == refusal::protection);
  if (!is_stranger) return;
  auto origin = g.connection ? g.connection->peer_address().host : std::string("?");
  if (!refused_from_.contains(origin) && refused_from_.size() >= refused_origins_max)
    origin = "other addresses";
  auto& from = refused_from_[origin];
  ++from.count;
  from.text = g.shake.reason().text();
}

void member_core::tell_refused() {
  if (now() < tell_refused_ns_) return;
  if (refused_from_.empty()) {
    tell_refused_again_ns_ = 0;
    return;
  }
  std::vector<std::pair<std::string, refused_origin>> all(refused_from_.begin(),
                                                          refused_from_.end());
  refused_from_.clear();
  std::ranges::stable_sort(all, std::ranges::greater(),
                           [](const auto& one) { return one.second.count; });
  std::uint64_t total = 0;
  std::string origins;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const auto& [origin, of] = all[i];
    total += of.count;
    if (i < refused_origins_told)
      origins += fmt::format("{} {} from {} ({})", i == 0 ? ":" : ",", of.count, origin, of.text);
  }
  if (all.size() > refused_origins_told)
    origins += fmt::format(", and from {} more addresses", all.size() - refused_origins_told);
  say(make_event(event_kind::join_refused,
                 fmt::format("refused {} connection{}{}", total, total == 1 ? "" : "s", origins)));
  tell_refused_again_ns_ =
      std::clamp(2 * tell_refused_again_ns_, tell_refused_ns, tell_refused_max_ns);
  tell_refused_ns_ = now() + tell_refused_again_ns_;
}

void member_core::established(greeter& g) {
  const auto peer = g.shake.peer();
  const auto dialled = g.dialled;
  const auto which = g.shake.lane();
  const bool is_other = raw(g.expected) != 0 && g.expected != peer.id;
  if (is_other) {
    const auto expected = g.expected;
    drop(g);
    return dial_failed(dialled, expected, which, dial_failure::other_life);
  }
  const bool is_initiator = g.is_initiator;
  if (!is_initiator && g.shake.expects_another()) return drop(g);
  const auto reached = is_initiator && g.connection->peer_address().port != 0
                           ? to_string(g.connection->peer_address())
                           : std::string();
  if (is_initiator) dialing_.erase({dialled, which});
  const auto received = g.shake.peer_received();
  // Meanwhile the peer's own dial may have begun another link, or this one may have been given up.
  const auto known = links_.find(peer.id);
  const bool fits = failed_links_.contains(peer.id) ? false
                    : known == links_.end()
                        ? g.shake.begins()
                        : known->second.number == g.shake.link() &&
                              known->second.core->session().can_connect(which, received);
  if (!fits) {
    drop(g);
    return dial_failed(dialled, peer.id, which, dial_failure::other);
  }
  const auto memory = memory_of(g);
  auto core = link_to(peer, g.shake.link()).core;
  auto connection = std::move(g.connection);
  auto word = std::move(g.word);
  drop(g);
  core->attach(which, std::move(connection), received, memory, std::move(word));
  if (is_initiator && which == lane::control &&
      core->session().state(lane::data) != lane_state::up) {
    core->session().dialing(lane::data);
    dial(dialled, peer.id, lane::data);
  }
  if (links_.contains(peer.id) && core->session().is_up() && !links_.at(peer.id).is_tool)
    membership_->linked(peer.id, peer.kind, now(), is_initiator ? dialled : "", reached);
  run_actions();
  announce_if_up(peer.id);
}

// PE-4. That it is on this host is only what the peer says, so the addresses have to say it too (we
// have a word for it); and one that names our own word would have us read ourselves.
std::optional<peer_memory> member_core::memory_of(const greeter& g) const {
  const auto& peer = g.shake.peer();
  if (!g.word || peer.host.empty() || peer.host != env_.self.host ||
      g.shake.peer_probe() == g.word.where())
    return {};
  return peer_memory::open(peer.pid, g.shake.peer_probe());
}

member_core::link_entry& member_core::link_to(const member_info& peer, std::uint64_t number) {
  if (auto at = links_.find(peer.id); at != links_.end()) return at->second;
  auto name = peer.name.empty() ? member_name(peer.id) : peer.name;
  auto record = std::make_shared<actor_record>(actor_kind::link, "link/" + name, "", *env_.clock);
  link_hooks hooks;
  hooks.heard = [this](node_id id) { membership_->heard(id, now()); };
  hooks.control = [this](node_id id, control_message m) { on_control(id, std::move(m)); };
  hooks.lane_lost = [this](node_id id) {
    auto at = links_.find(id);
    if (at != links_.end() && at->second.is_tool) return close_link(id);
    membership_->link_lost(id, now());
    run_actions();
  };
  hooks.damaged = [this](node_id id, const error& e) {
    const auto* m = membership_->find(id);
    say_once(fmt::format("a connection to {} is given up and made again: {}",
                         m != nullptr ? m->name : member_name(id), e.message()));
  };
  hooks.no_memory = [this](job_id job, std::string text) {
    tell(worker_, node_,
         part_event{job, 0, part_event_kind::failed, std::move(text), "receive", 0, {}});
  };
  hooks.broken = [this](node_id id, const error& e) { give_up_link(id, e.message()); };
  auto core =
      std::make_shared<link_core>(*env_.net, *system_, worker_, membership_->self().id, peer,
                                  std::move(hooks), std::move(record), env_.bugs, env_.lane);
  auto actor = spawn_link(*system_, worker_, core);
  on_failure(actor, [member = actor_, id = peer.id, number](const std::string& text) {
    if (const auto to = caf::actor_cast<caf::actor>(member))
      tell(nullptr, to, link_failed{id, number, text});
  });
  const auto supervised =
      supervision_.add_child(top_supervisor, core->record()->name, link_policy.restart);
  tick_links();
  supervision_.on_started(supervised, now());
  return links_
      .emplace(peer.id, link_entry{std::move(core), std::move(actor), supervised, number, now(),
                                   false, peer.kind == member_kind::tool})
      .first->second;
}

std::uint64_t member_core::drops(drop_reason r) const {
  std::uint64_t n = 0;
  for (const auto& [id, l] : links_) n += l.core->session().drops(r);
  return n;
}

std::size_t member_core::kept_bytes() const {
  std::size_t n = 0;
  for (const auto& [id, l] : links_)
    n += l.core->session().unacknowledged_payload_bytes(lane::data);
  return n;
}

void member_core::close_link(node_id peer) {
  auto at = links_.find(peer);
  if (at == links_.end()) return;
  auto gone = std::move(at->second);
  links_.erase(at);
  if (!failed_links_.contains(peer)) supervision_.remove(gone.supervised, now());
  gone.core->close();
  tell(worker_, gone.actor, end_actor{});
  env_.net->after(0, [core = std::move(gone.core)] {});  // a callback of it may be running
}

// A process that was stopped sees others let it go, and shall not blame them.
std::string member_core::cause_of_end(const std::string& why) const {
  const bool is_now = now() - ticked_ns_ >= stood_still_ns;
  if (!is_now && now() - stood_still_.until_ns >= stood_still_blames_ns) return why;
  const auto gap = is_now ? now() - ticked_ns_ : stood_still_.ns;
  const auto without_cpu = is_now && env_.waited_for_cpu_ns
                               ? env_.waited_for_cpu_ns() - waited_for_cpu_ns_
                               : stood_still_.without_cpu_ns;
  // Others had all CPUs; else it was stopped, or waited for a disk.
  const auto starved = without_cpu < gap / 2
                           ? std::string()
                           : fmt::format(" ({:.1f} s of it ready to run, and without a CPU)",
                                         double(without_cpu) * 1e-9);
  return fmt::format("this process stood still for {:.1f} s{}, and meanwhile {}",
                     double(gap) * 1e-9, starved, why);
}

void member_core::give_up_link(node_id peer, const std::string& given) {
  const auto at = links_.find(peer);
  if (at == links_.end()) return;
  const auto why = cause_of_end(given);
  const bool was_announced = at->second.is_announced;
  const auto* named = membership_->find(peer);
  say(make_event(event_kind::link_lost,
                 fmt::format("the link to {} is given up: {}",
                             named != nullptr ? named->name : member_name(peer), why)));
  if (const auto* known = membership_->find(peer); was_announced && known != nullptr) {
    // What the link kept is lost, so for all that relied on it the peer has died; it may come up
    // anew.
    auto about = *known;
    about.state = member_state::dead;
    about.reason = "the link to it was given up: " + why;
    tell(worker_, node_, member_down{std::move(about), true});
  }
  close_link(peer);
  membership_->link_given_up(peer, now());
  run_actions();
}

// ME-5.
void member_core::on_link_failed(const link_failed& m) {
  const auto at = links_.find(m.peer);
  if (at == links_.end() || at->second.number != m.number) return;
  failed_links_[m.peer] = at->second.supervised;
  supervision_.on_ended(at->second.supervised, m.text, now());
  give_up_link(m.peer, "its actor failed: " + m.text);
  tick_links();
  if (supervision_.verdict() != nullptr)
    throw std::runtime_error(supervision_.verdict()->where_and_why());
}

// A link begins with a connection, so to start one is to let connections come.
void member_core::tick_links() {
  supervision_.tick(now());
  for (const auto& a : supervision_.take_actions()) {
    if (a.kind != supervision_action_kind::start) continue;
    const auto failed =
        std::ranges::find_if(failed_links_, [&](const auto& f) { return f.second == a.who; });
    if (failed == failed_links_.end()) continue;
    failed_links_.erase(failed);
    supervision_.remove(a.who, now());
  }
}

void member_core::on_control(node_id from, control_message body) {
  if (std::holds_alternative<heartbeat>(body)) return;
  if (auto* v = std::get_if<view_update>(&body)) {
    // Which has no action, and is shown all the same.
    const bool has_moved = std::ranges::any_of(v->members, [this](const member_info& m) {
      const auto* known = membership_->find(m.id);
      return known != nullptr && m.revision > known->revision && m.address != known->address;
    });
    membership_->on_view(from, v->members, now());
    if (has_moved) publish_view();
  }
  if (auto* l = std::get_if<troupe::leave>(&body)) membership_->on_leave(from, l->reason, now());
  if (auto* f = std::get_if<fenced>(&body)) membership_->on_fenced(from, *f, now());
  run_actions();
  announce_if_up(from);
  auto at = links_.find(from);
  if (at == links_.end()) return;
  if (auto* q = std::get_if<query>(&body))
    return tell(worker_, node_, ask{q->id, q->request, at->second.actor});
  if (auto* q = std::get_if<trace_query>(&body))
    return tell(worker_, node_, ask_trace{std::move(*q), at->second.actor});
  // A tool asks; it runs no jobs.
  if (!at->second.is_tool && is_for_node(body))
    tell(worker_, node_, peer_message{from, std::move(body)});
}

// --- membership ----------------------------------------------------------------------------------

void member_core::announce_if_up(node_id peer) {
  auto at = links_.find(peer);
  const auto* m = membership_->find(peer);
  if (at == links_.end() || m == nullptr || at->second.is_announced || at->second.is_tool ||
      !at->second.core->session().is_up())
    return;
  if (m->state == member_state::dead || m->state == member_state::left) return;
  at->second.is_announced = true;
  publish_view();
  tell(worker_, node_, member_up{*m, at->second.actor, at->second.core->record()});
}

void member_core::run_actions() {
  // What follows from an action comes after it.
  if (std::exchange(is_running_actions_, true)) return;
  for (auto actions = membership_->take_actions(); !actions.empty();
       actions = membership_->take_actions())
    for (const auto& a : actions) carry_out(a);
  is_running_actions_ = false;
}

void member_core::carry_out(const membership_action& a) {
  using kind = membership_action_kind;
  auto at = links_.find(a.node);
  auto* link = at != links_.end() ? at->second.core.get() : nullptr;
  switch (a.kind) {
    case kind::connect:
      // Its other lane is on its way.
      if (link != nullptr && link->session().state(lane::control) == lane_state::up) return;
      return dial(a.text, a.node, lane::control);
    case kind::close: return close_link(a.node);
    case kind::send_view:
      if (link != nullptr) link->send(control_message(view_update{membership_->view()}));
      return;
    case kind::send_heartbeat:
      if (link != nullptr)
        link->send_unnumbered(control_message(heartbeat{static_cast<std::uint64_t>(now())}));
      return;
    case kind::send_fence:
      if (link != nullptr) link->send_unnumbered(control_message(a.claim));
      return;
    case kind::send_leave:
      if (link != nullptr) link->send(control_message(troupe::leave{a.text}));
      return;
    case kind::check_process:
      if (!env_.process_exists(a.about.pid)) membership_->process_gone(a.node, now());
      return;
    case kind::rejoin: return rejoin(a.text);
    case kind::joined: announce_if_up(a.node); break;
    case kind::unreachable:
    case kind::died:
    case kind::left: {
      auto about = a.about;
      if (a.kind == kind::unreachable) about.state = member_state::unreachable;
      tell(worker_, node_, member_down{std::move(about)});
      break;
    }
    case kind::reachable:
      say(make_event(event_kind::member_back, fmt::format("{} is reachable again", a.about.name),
                     fmt::format("{:016x}", raw(a.about.id))));
      break;
    case kind::conflict: say(make_event(event_kind::cluster_conflict, a.text)); break;
  }
  publish_view();
}

void member_core::rejoin(const std::string& why) {
  say(make_event(event_kind::node_rejoined, fmt::format("rejoins with a new id: {}", why)));
  while (!links_.empty()) close_link(links_.begin()->first);
  // Handshakes speak for the life that is over: whoever took part in one would know us by a dead
  // id.
  while (!greeters_.empty()) drop(*greeters_.begin()->second);
  dialing_.clear();
  std::uint64_t id = 0;
  env_.random(std::as_writable_bytes(std::span(&id, 1)));
  membership_ = std::make_unique<membership>(
      membership_->reborn(node_id{id | 1}, env_.wall_clock_ns(), now()));
  env_.self = membership_->self();
  announce();
  tell(worker_, node_, rejoined{env_.self});
  publish_view();
}

// What repeats with every dial is told when it changes.
void member_core::say_once(std::string text) {
  if (std::exchange(said_, text) != text) say_warning(std::move(text));
}

void member_core::say(event what) { tell(worker_, node_, member_event{std::move(what)}); }

void member_core::say_warning(std::string text) {
  auto what = make_event(event_kind::note, std::move(text));
  what.level = event_level::warning;
  say(std::move(what));
}

void member_core::publish_view() {
  if (node_)
    tell(worker_, node_, view_changed{membership_->self(), membership_->members(), denied_, {}});
}

// --- the actor -----------------------------------------------------------------------------------

namespace {

struct member_actor_state {
  static inline const char* name = "member";
  std::shared_ptr<member_core> core;
};

caf::behavior member_actor(caf::stateful_actor<member_actor_state>* self,
                           std::shared_ptr<member_core> core, caf::actor node) {
  self->state.core = std::move(core);
  auto& s = self->state;
  self->set_exception_handler(&reason_of);
  s.core->start(self->system(), self->context(), self->address(), std::move(node));
  return {
      [&s](const jobs_changed& m) { s.core->set_jobs(m.jobs); },
      [self, &s](const leave_cluster& m) {
        // From a timer: an actor ends only in a handler of its own, and who is told may drop the
        // last other handle to us.
        s.core->leave(m.reason, [me = caf::actor_cast<caf::actor>(self), to = m.to] {
          tell(nullptr, me, end_actor{});
          tell(nullptr, to, left_cluster{});
        });
      },
      [&s](const link_failed& m) { s.core->on_link_failed(m); },
      [self](end_actor) { self->quit(); },
  };
}

}  // namespace

caf::actor spawn_member(caf::actor_system& sys, caf::execution_unit* worker,
                        std::shared_ptr<member_core> core, caf::actor node) {
  return spawn_on(sys, worker, &member_actor, std::move(core), std::move(node));
}

}  // namespace troupe
