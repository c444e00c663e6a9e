#pragma once
// The process as a member of its cluster: finds the others, greets whoever connects, keeps a link
// to each, notices who dies.
//
//   member_actor
//   message        from      effect                                                    answer
//   jobs_changed   node      goes out with the next views                              -
//   leave_cluster  process   say goodbye, end all links                                left_cluster
//   link_failed    a link    give it up; a new one may come after its back-off         -
//   end_actor      itself    end                                                       -
//
// To the node: member_up, member_down, view_changed, peer_message, ask and ask_trace (from tools),
// member_event, rejoined.
//
// member_core does the work, driven by the transport's callbacks and one timer, all on the I/O
// worker: no computation delays it. What it decides is decided by runtime/cluster/membership.hpp,
// runtime/wire/handshake.hpp and runtime/wire/link_session.hpp.
//
// ME-1  Nothing of a connection is used before the handshake has proven its peer.
// ME-2  member_up comes once a link with both lanes stands and the view holds the peer alive;
//       member_down once it is dead or gone.
// ME-3  A connection of a tool is a link without membership.
// ME-4  A link lives at both ends or at none. Each has a number; a connection for a link that this
//       end gave up is refused as forgotten, and one that begins a link ends the former. For jobs a
//       link given up is a death of the peer, which may come up again.
// ME-5  The actor of a link that fails takes its link with it (ME-4), and is supervised by
//       link_policy: nobody sends to an actor that is not there, and a link that fails again and
//       again makes the member fail.
// ME-6  What is good for listening need not be good for telling: a process that listens at a
//       wildcard tells others the address of this machine by which a proven peer and it have met
//       (the local end of that connection: the peer reached us there, or the route to it begins
//       there), with the port that it listens on. One that other machines reach replaces one that
//       they do not, and nothing replaces that. member_environment::announced tells another one.
// Supervision: member_policy. Without it the process ends: it would look alive and know nobody.
// Threading: the I/O worker; construct and listen before its thread runs.

#include "troupe/actors/cluster/link.hpp"
#include "troupe/actors/messages/member_messages.hpp"
#include "troupe/actors/messages/node_messages.hpp"
#include "troupe/actors/net/peer_memory.hpp"
#include "troupe/actors/net/transport.hpp"
#include "troupe/runtime/cluster/membership.hpp"
#include "troupe/runtime/insight/actor_record.hpp"
#include "troupe/runtime/wire/handshake.hpp"

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

namespace troupe {

inline constexpr supervision_policy member_policy{.restart = restart_kind::transient,
                                                  .limits = no_restarts};
// Where other members may be found.
class rendezvous {
 public:
  struct place {
    std::string address;
    node_id id{};  // 0: not known
  };
  virtual ~rendezvous() = default;
  // Looks for members whose ids are not among `known` (sorted) and gives their places to `found`,
  // at once or in parts, on the member's thread, now or later. A look while another one goes on is
  // not begun, nor does `found` come after the end of this object. Never blocks: a disk may take
  // its time.
  using found_handler = std::function<void(std::vector<place>)>;
  virtual void look(std::vector<node_id> known, found_handler found) = 0;
  // We are `self` now.
  virtual result<void> announce(const member_info& self) = 0;
};

struct member_environment {
  member_info self;  // its address is filled in by listen()
  std::string cluster;
  secret token;
  std::string warning;             // said once, at the start; empty: nothing
  std::vector<std::string> seeds;  // --join
  // HOST:PORT that others are told to reach us at, where they cannot reach what we listen at
  // (containers, address translation); port 0: the one that we listen on. Empty: see ME-6.
  std::string announced;
  bool is_tool = false;  // asks only: does not listen, is no member
  transport* net = nullptr;
  rendezvous* places = nullptr;  // null: only seeds
  std::shared_ptr<coarse_clock> clock;
  std::function<void(std::span<std::byte>)> random;  // unpredictable bytes
  std::function<std::uint64_t()> wall_clock_ns;
  std::function<bool(std::uint32_t pid)> process_exists;
  // How long the I/O thread, which asks, was ready to run and had no CPU, all in all; null: nobody
  // knows.
  std::function<std::int64_t()> waited_for_cpu_ns;
  membership_options options;
  // A seed will not have us for a reason that does not pass, and we know nobody else. On the I/O
  // worker.
  std::function<void(const error&)> on_denied;
  direct_reads reads = direct_reads::off;  // of tensors in the memory of peers on this machine
  const planted_bugs* bugs = nullptr;      // tests only
  std::shared_ptr<trace_lane> lane;  // of the I/O worker; null: its transfers are in no timeline
};

class member_core {
 public:
  explicit member_core(member_environment environment);
  ~member_core();
  member_core(const member_core&) = delete;
  member_core& operator=(const member_core&) = delete;

  // Where we listen, with the port. What others are told is self().address.
  result<address> listen(const address& at);
  const member_info& self() const noexcept { return env_.self; }

  // From the actor, on the I/O worker: everything begins.
  void start(caf::actor_system& sys, caf::execution_unit* worker, caf::actor_addr self,
             caf::actor node);
  void set_jobs(std::uint32_t jobs);
  void leave(const std::string& reason, std::function<void()> then);
  const std::map<refusal, std::uint64_t>& refused() const noexcept { return refused_; }
  // What the links that stand have dropped for this reason.
  std::uint64_t drops(drop_reason r) const;
  // Bytes of tensors that the links keep because the peers have not acknowledged them.
  std::size_t kept_bytes() const;
  // Closes a link that cannot go on, with all that it keeps; a new one follows as long as
  // membership holds the peer alive.
  void give_up_link(node_id peer, const std::string& why);
  // Throws when that has happened too often.
  void on_link_failed(const link_failed& m);

 private:
  struct greeter;
  struct link_entry {
    std::shared_ptr<link_core> core;
    caf::actor actor;
    supervised_id supervised{};
    std::uint64_t number = 0;  // both ends know the link by it
    std::int64_t since_ns = 0;
    bool is_announced = false;
    bool is_tool = false;
  };

  std::int64_t now() const { return env_.net->now_ns(); }
  void announce();
  void settle_address(const address& here);
  void tick();
  void tick_link(node_id id);
  void look_around();
  void dial(const std::string& to, node_id expected, lane l);
  void dial_failed(const std::string& to, node_id expected, lane l, dial_failure why,
                   const std::string& text = {});
  void greet(std::unique_ptr<channel> c, bool is_initiator, std::string dialled, node_id expected,
             lane l);
  bool is_dialling(const member_info& peer, lane l) const;
  void advance(greeter& g);
  void established(greeter& g);
  void refused(greeter& g);
  void count_refused(const greeter& g);
  void tell_refused();
  std::optional<peer_memory> memory_of(const greeter& g) const;
  void drop(greeter& g);
  link_entry& link_to(const member_info& peer, std::uint64_t number);
  void close_link(node_id peer);
  void tick_links();
  void on_control(node_id from, control_message body);
  void announce_if_up(node_id peer);
  void run_actions();
  void carry_out(const membership_action& a);
  void rejoin(const std::string& why);
  void say(event what);
  void say(std::string text) { say(make_event(event_kind::note, std::move(text))); }
  void say_warning(std::string text);
  void say_once(std::string text);
  std::string cause_of_end(const std::string& why) const;
  void publish_view();

  member_environment env_;
  caf::actor_system* system_ = nullptr;
  caf::execution_unit* worker_ = nullptr;
  caf::actor_addr actor_;
  caf::actor node_;
  std::unique_ptr<membership> membership_;
  std::map<node_id, link_entry> links_;
  supervision_tree supervision_{"links", link_policy.strategy, link_policy.limits};
  std::map<node_id, supervised_id> failed_links_;  // until their back-off has ended
  std::map<std::uint64_t, std::unique_ptr<greeter>> greeters_;
  std::uint64_t last_greeter_ = 0;
  struct dial_in_progress {
    node_id expected{};
    std::int64_t since_ns = 0;
  };
  std::map<std::pair<std::string, lane>, dial_in_progress> dialing_;  // until linked or failed
  address listens_at_;                                                // port 0: it does not
  std::int64_t look_at_ns_ = 0;
  std::set<std::string> named_;  // addresses of names in --join; forgotten when they are too many
  std::int64_t started_ns_ = 0;
  std::int64_t ticked_ns_ = 0;
  std::int64_t waited_for_cpu_ns_ = 0;  // at that tick
  struct {
    std::int64_t ns = 0, without_cpu_ns = 0, until_ns = -1'000'000'000'000;
  } stood_still_;
  std::string said_;
  std::string denied_;  // the last refusal for a reason that does not pass: token, cluster, version
  std::map<refusal, std::uint64_t> refused_;
  struct refused_origin {
    std::uint64_t count = 0;
    std::string text;  // why, of the last one
  };
  std::map<std::string, refused_origin> refused_from_;  // since that was last told
  std::int64_t tell_refused_ns_ = 0, tell_refused_again_ns_ = 0;
  timer_id timer_{};
  bool is_running_actions_ = false;
  bool has_left_ = false;
  std::shared_ptr<bool> is_alive_;
};

caf::actor spawn_member(caf::actor_system& sys, caf::execution_unit* worker,
                        std::shared_ptr<member_core> core, caf::actor node);

}  // namespace troupe
