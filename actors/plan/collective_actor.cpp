// One rank of a collective: reduces or moves what this process contributes, piece by piece, with
// its peers. What happens when is decided by runtime/firing/collective_state.hpp; here are the
// bytes.
//
//   tensor_ready   producer (own ports)   keep it; begin when the whole contribution is here, and
//                                         credits for the results
//                  link (ports of peers)  a piece of the step, or of a later one
//   credit         consumer, link         room for results; room for more pieces at a peer
//   peer_lost      supervisor             a rank's node is gone: what it has not taken is not
//                                         waited for; the job's coordinator says what follows
//
// CL-1  A result is written in memory that nobody else has, until it is passed on whole. Pieces are
//       sent out of it as soon as they are final, and out of contributions as they are.
// CL-2  Pieces of a later step wait in their edge's credits until this rank comes to that step.
// CL-4  What is final is read by the link right where the result has it, if this rank has come to
//       that step.
// CL-3  Credits go back to a peer in halves of an edge, so that a small collective costs no message
//       of its own for them.
// CL-6  A cut's mark on any contribution of a step is on all results of the step: pieces carry it
//       from rank to rank, and what anybody's result is made of came with it.
// CL-5  A rank has ended once its peers have taken all that it sent, or one of them is lost: a node
//       whose part has ended may die, and nothing is missed.
// Threading: the worker of the links, so that a piece is added where it was read and sent on from
// there. Nothing that it does takes longer than adding up one piece.

#include "troupe/actors/base/tell.hpp"
#include "troupe/actors/plan/port_actor.hpp"
#include "troupe/devices/host/loops/combine.hpp"
#include "troupe/devices/memory/buffer_pool.hpp"
#include "troupe/runtime/firing/collective_state.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <optional>
#include <utility>

namespace troupe {

namespace {

class collective_logic final : public port_logic {
 public:
  using port_logic::port_logic;
  ~collective_logic() override {
    if (desk_) desk_->destination = nullptr;
  }

 private:
  const planned_collective& collective() const { return *self_plan().collective; }
  const collective_spec& spec() const { return collective().spec; }
  std::size_t parts() const { return collective().own_parts(); }
  bool scatters() const { return spec().kind == collective_kind::reduce_scatter; }
  std::span<const tensor_spec> tensors() const {
    return {self_plan().output_specs.data(), collective().tensors};
  }
  bool is_packed() const { return collective().tensors > 1 && !scatters(); }

  struct peer {
    std::uint32_t rank = 0;
    caf::actor link;
    std::uint32_t edge_in = 0, edge_out = 0;
    std::uint64_t sent = 0;  // items
    std::uint32_t owed = 0;  // credits that have not gone back
    std::uint32_t owed_max = 1;
    std::deque<tensor_ready> early;  // CL-2
  };

  // The ports of peers have no counters in this process.
  void wire_more(const std::shared_ptr<const part_handles>& handles) override {
    const auto& plan = *part_->job_plan;
    const auto own = collective().own_inputs();
    peers_.resize(spec().ranks());
    for (std::size_t i = 0; i < collective().peers_from.size(); ++i) {
      auto& p = peers_[collective().peers_from[i]];
      p.edge_in = self_plan().inputs[own + i];
      p.link = handles->links[plan.actors[plan.edges[p.edge_in].from.actor].task];
      p.owed_max = credit_lot(plan.edges[p.edge_in].credits);
    }
    credits_ = credits_max;
    for (std::size_t i = 0; i < collective().peers_to.size(); ++i) {
      auto& p = peers_[collective().peers_to[i]];
      p.edge_out = self_plan().outputs[collective().tensors + i].front();
      p.link = handles->links[plan.actors[plan.edges[p.edge_out].to.actor].task];
      credits_ = std::min(credits_, plan.edges[p.edge_out].credits);
    }
    for (std::uint32_t r = 0; r < peers_.size(); ++r) peers_[r].rank = r;
    ports_.in.resize(own);
    while (!ports_.out.empty() && ports_.out.back().output >= collective().tensors)
      ports_.out.pop_back();
    state_.emplace(spec(), credits_, fired_);
    desk_ = handles->desks.at(actor_);
    desk_->destination = [this](std::uint32_t port, std::uint64_t step, std::uint32_t part) {
      return destination(port, step, part);
    };
    slots_.resize(state_->slots());
    slot_peer_.resize(state_->slots());
    for (const auto peer : collective().peers_to) show_credits(peer);
  }

  result<void> open() override {
    if (!can_combine(spec().type))
      return error(error_code::usage, fmt::format("{} of {}: elements of this type cannot be "
                                                  "combined",
                                                  to_string(spec().kind), to_string(spec().type)));
    const auto bytes = static_cast<std::size_t>(spec().elements) * size_of(spec().type);
    const dim all{static_cast<std::int64_t>(bytes), 0};
    vector_ =
        is_packed() || scatters() ? tensor_spec{dtype::u8, *shape::from({&all, 1})} : tensors()[0];
    std::size_t buffers = 1;
    for (std::size_t port = 0; port < collective().tensors; ++port)
      for (const auto e : self_plan().outputs[port])
        buffers = std::max<std::size_t>(buffers, 1 + part_->job_plan->edges[e].credits);
    results_.emplace(bytes, buffers);
    if (is_packed()) copies_.emplace(bytes, 2 * parts());
    if (scatters()) copies_.emplace(bytes / parts_of(spec()), buffers * parts());
    contributions_.resize(parts());
    return {};
  }

  // CL-4.
  tensor destination(std::uint32_t port, std::uint64_t step, std::uint32_t part) {
    const auto own = collective().own_inputs();
    if (has_failed_ || !result_ || port < own || port - own >= collective().peers_from.size())
      return {};
    const auto piece = state_->lands_in(collective().peers_from[port - own], step, part);
    // Slices may begin anywhere: then it is copied.
    if (!piece || begin_of(*piece) % tensor::alignment_bytes != 0) return {};
    const dim bytes{static_cast<std::int64_t>(elements_of(*piece) * size_of(spec().type)), 0};
    return result_.part(begin_of(*piece), {dtype::u8, *shape::from({&bytes, 1})});
  }

  void on_tensor(tensor_ready& m) override {
    const auto own = collective().own_inputs();
    if (m.port < own) return port_logic::on_tensor(m);
    if (has_failed_) return;
    if (!m.value) return fail(error(error_code::failed, "a piece has no bytes"));
    record_.count_in(m.value.size_bytes());
    record_.ports[m.port]->count_item();
    auto& from = peers_[collective().peers_from[m.port - own]];
    if (auto ok = arrive(from, m); !ok) return fail(ok.error());
    advance();
  }

  result<void> arrive(peer& from, tensor_ready& m) {
    const auto slot = state_->on_chunk(from.rank, m.t.step, m.part);
    if (!slot) return slot.error();
    if (!*slot) {
      from.early.push_back(std::move(m));
      return {};
    }
    const auto& piece = state_->pieces()[state_->piece_of(from.rank, m.part)];
    if (m.value.size_bytes() != static_cast<std::size_t>(piece.elements) * size_of(spec().type))
      return error(error_code::failed,
                   fmt::format("rank {} sent {} bytes for a piece of {} elements", from.rank,
                               m.value.size_bytes(), piece.elements));
    mark_ = std::max(mark_, m.t.mark);  // CL-6
    slots_[**slot] = std::move(m.value);
    slot_peer_[**slot] = from.rank;
    return {};
  }

  void on_credit(const credit& m) override {
    const auto first = ports_.out.size();
    if (m.outlet < first) return port_logic::on_credit(m);
    if (has_failed_) return;
    const auto peer = collective().peers_to.at(m.outlet - first);
    if (m.count > credits_ - state_->credits_of(peer))
      return fail(error(error_code::failed,
                        fmt::format("rank {} returned {} credits, but held only {}", peer, m.count,
                                    credits_ - state_->credits_of(peer))));
    state_->on_credit(peer, m.count);
    show_credits(peer);
    advance();
    if (is_done() && is_settled()) report_done();
  }

  void on_peer_lost(const peer_lost&) override {
    is_peer_lost_ = true;
    if (is_done()) report_done();
  }

  bool is_settled() const override {
    const auto& to = collective().peers_to;
    return is_peer_lost_ || std::all_of(to.begin(), to.end(),
                                        [&](auto r) { return state_->credits_of(r) == credits_; });
  }

  void advance() override {
    if (!is_started_ || has_failed_ || is_done()) return;
    do {
      if (!state_->has_begun()) {
        if (must_wait()) return;
        begin();
      }
      run();
    } while (!state_->has_begun() && !has_failed_ && !is_done());
    if (!has_failed_ && !is_done()) show_wait();
  }

  void begin() {
    busy_mark busy(*this);
    tag_ = {};
    for (std::size_t i = 0; i < ports_.in.size(); ++i) {
      const auto& head = ports_.in[i].queue.front();
      if (head.t.dead != 0)
        return fail(error(error_code::failed,
                          "a contribution was left out, but a collective needs one "
                          "from every worker"));
      if (const auto& wanted = part_->job_plan->edges[self_plan().inputs[i]].spec;
          head.value.spec() != wanted)
        return fail(error(error_code::failed,
                          fmt::format("rank {} of {}, {}: worker {} contributes {}, but the "
                                      "collective takes {}",
                                      spec().rank, spec().ranks(), to_string(spec().kind),
                                      collective().workers[i * parts() / ports_.in.size()],
                                      to_string(head.value.spec()), to_string(wanted))));
      tag_ = head.t;
      mark_ = std::max(mark_, head.t.mark);
    }
    if (ports_.in.empty()) tag_.step = fired_;
    result_ = results_->take(vector_);
    for (std::size_t p = 0; p < parts(); ++p) {
      if (!is_packed()) {
        contributions_[p] = std::move(ports_.in[p].queue.front().value);
        continue;
      }
      contributions_[p] = copies_->take(vector_);
      for (std::size_t t = 0; t < collective().tensors; ++t) {
        const auto& value = ports_.in[p * collective().tensors + t].queue.front().value;
        std::ranges::copy(value.bytes(), contributions_[p].bytes().begin() +
                                             static_cast<std::ptrdiff_t>(offset_bytes(t)));
      }
    }
    state_->begin();
  }

  std::size_t offset_bytes(std::size_t t) const {
    return static_cast<std::size_t>(offset_in_vector(tensors(), t)) * size_of(spec().type);
  }

  void run() {
    if (has_failed_) return;
    busy_mark busy(*this);
    while (auto action = state_->next())
      std::visit([this](const auto& a) { carry_out(a); }, *action);
  }

  std::size_t begin_of(std::uint32_t piece) const {
    return static_cast<std::size_t>(state_->pieces()[piece].offset) * size_of(spec().type);
  }
  std::size_t elements_of(std::uint32_t piece) const {
    return static_cast<std::size_t>(state_->pieces()[piece].elements);
  }
  std::byte* result_of(std::uint32_t piece) { return result_.bytes().data() + begin_of(piece); }

  void carry_out(const collective_reduce& a) {
    operands_.clear();
    for (const auto& o : a.operands) switch (o.of) {
        case collective_operand::kind::part:
          operands_.push_back(std::as_const(contributions_[o.index]).bytes().data() +
                              begin_of(a.piece));
          break;
        case collective_operand::kind::result: operands_.push_back(result_of(a.piece)); break;
        case collective_operand::kind::slot:
          operands_.push_back(std::as_const(slots_[o.index]).bytes().data());
          break;
      }
    const auto kind = spec().reduction == reduction_kind::min   ? combine_kind::min
                      : spec().reduction == reduction_kind::max ? combine_kind::max
                                                                : combine_kind::sum;
    combine(kind, spec().type, result_of(a.piece), operands_, elements_of(a.piece));
    if (a.is_final && spec().reduction == reduction_kind::mean) {
      divide(spec().type, result_of(a.piece), elements_of(a.piece),
             static_cast<double>(parts_of(spec())));
    }
    for (const auto& o : a.operands)
      if (o.of == collective_operand::kind::slot) let_go(o.index);
  }

  void carry_out(const collective_copy& a) {
    if (const auto from = std::as_const(slots_[a.slot]).bytes(); from.data() != result_of(a.piece))
      std::ranges::copy(from, result_of(a.piece));
    let_go(a.slot);
  }

  void carry_out(const collective_own& a) {
    auto from = begin_of(a.piece);
    if (has_slices(spec().kind)) from -= begin_of_slice(state_->pieces()[a.piece].part);
    std::copy_n(std::as_const(contributions_[a.part]).bytes().data() + from,
                elements_of(a.piece) * size_of(spec().type), result_of(a.piece));
  }

  void carry_out(const collective_send& a) {
    auto& to = peers_[a.peer];
    show_credits(a.peer);
    const auto bytes = elements_of(a.piece) * size_of(spec().type);
    record_.count_out(bytes);
    record_.ports[port_to(a.peer)]->count_item();
    tell(self_.context(), to.link,
         send_piece{part_->job, to.edge_out, to.sent++, tag{.step = state_->step(), .mark = mark_},
                    a.part >= 0 ? contributions_[static_cast<std::size_t>(a.part)] : result_,
                    begin_of(a.piece), bytes, a.key});
  }

  void carry_out(const collective_finished&) {
    tag_.mark = std::exchange(mark_, 0);
    for (std::uint32_t t = 0; t < collective().tensors; ++t) emit(t, tag_, result_at(t));
    result_ = {};
    for (auto& c : contributions_) c = {};
    for (std::uint32_t i = 0; i < ports_.in.size(); ++i) {
      ports_.in[i].queue.pop();
      give_back(i);
    }
    update_queue();
    count_firing(tag_);
    for (auto& p : peers_) {
      if (is_done() && p.owed > 0) give_owed(p);
      const auto all = std::exchange(p.early, {});
      for (auto m : all)
        if (auto ok = arrive(p, m); !ok) return fail(ok.error());
    }
  }

  tensor result_at(std::uint32_t t) {
    if (!is_packed() && !scatters()) return result_;
    const auto from = scatters() ? begin_of_slice(spec().parts[spec().rank][t]) : offset_bytes(t);
    if (from % tensor::alignment_bytes == 0) return result_.part(from, tensors()[t]);
    auto copy = copies_->take(tensors()[t]);  // a slice may begin anywhere
    std::copy_n(std::as_const(result_).bytes().data() + from, copy.size_bytes(),
                copy.bytes().data());
    return copy;
  }

  std::size_t begin_of_slice(std::uint32_t part) const {
    return static_cast<std::size_t>(slice_of(spec(), part).first) * size_of(spec().type);
  }

  // CL-3.
  void let_go(std::uint32_t slot) {
    slots_[slot] = {};
    auto& p = peers_[slot_peer_[slot]];
    if (++p.owed >= p.owed_max) give_owed(p);
  }
  void give_owed(peer& p) {
    record_.ports[port_from(p.rank)]->count_return(p.owed);
    tell(self_.context(), p.link, return_credit{part_->job, p.edge_in, std::exchange(p.owed, 0)});
  }

  void show_credits(std::uint32_t peer) {
    record_.ports[port_to(peer)]->credits_left.store(
        static_cast<std::int32_t>(state_->credits_of(peer)), std::memory_order_relaxed);
  }

  // In the record; what goes to other ranks stands behind what goes to consumers.
  std::size_t port_to(std::uint32_t peer) const {
    const auto& to = collective().peers_to;
    const auto place = static_cast<std::size_t>(std::find(to.begin(), to.end(), peer) - to.begin());
    return record_.ports.size() - to.size() + place;
  }
  std::size_t port_from(std::uint32_t peer) const {
    const auto& from = collective().peers_from;
    return collective().own_inputs() +
           static_cast<std::size_t>(std::find(from.begin(), from.end(), peer) - from.begin());
  }

  void show_wait() {
    const auto w = state_->waiting();
    if (w.type == collective_wait::kind::chunk)
      record_.enter(actor_state::waiting_for_input, static_cast<std::uint32_t>(port_from(w.peer)));
    if (w.type == collective_wait::kind::credit)
      record_.enter(actor_state::waiting_for_credit, static_cast<std::uint32_t>(port_to(w.peer)));
  }

  std::vector<peer> peers_;  // by rank
  std::optional<collective_state> state_;
  std::shared_ptr<piece_desk> desk_;
  std::uint32_t credits_ = 0;  // at each peer
  bool is_peer_lost_ = false;
  std::vector<tensor> slots_;
  std::vector<std::uint32_t> slot_peer_;
  tensor_spec vector_;
  std::optional<buffer_pool> results_, copies_;
  tensor result_;
  std::vector<tensor> contributions_;  // by part
  std::vector<const std::byte*> operands_;
  tag tag_;
  std::uint32_t mark_ = 0;  // of the step that is the current one, as far as it has come
};

}  // namespace

std::unique_ptr<port_logic> make_collective_logic(port_shell& s,
                                                  std::shared_ptr<const part_context> p,
                                                  std::uint32_t a) {
  return std::make_unique<collective_logic>(s, std::move(p), a);
}

}  // namespace troupe
