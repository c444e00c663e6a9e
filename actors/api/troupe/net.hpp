#pragma once
// Sources and ends of pipelines that are elsewhere: lines and frames over TCP, requests over HTTP
// that a topology answers. Link troupe::pipelines.
//
//   auto server = troupe::http_server::open({.listen = "127.0.0.1:0"});
//   if (!server) throw std::runtime_error(server.error().text());
//   troupe::topology t;
//   auto requests = troupe::http_requests(t, *server, "/twice");
//   troupe::answer(troupe::map(requests, [](troupe::http_request r) {
//     return troupe::http_answer{r.reply, 200, "text/plain", r.body + r.body};
//   }));
//   std::cout << "http://" << server->address() << "/twice\n";
//   t.stop();  // a server calls t.run(), which ends at Ctrl-C
//   auto done = t.run_to_end();
//   if (!done) throw std::runtime_error(done.error().text());

#include "troupe/actors/flow/net/http_server.hpp"
#include "troupe/actors/flow/net/tcp_sender.hpp"
#include "troupe/actors/flow/net/tcp_server.hpp"
#include "troupe/actors/flow/topology.hpp"
