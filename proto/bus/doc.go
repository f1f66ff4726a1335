// Package bus runs gRPC services over NATS: ordinary generated stubs call and
// serve through it, because Client.Pool is a grpc.ClientConnInterface and
// Server a grpc.ServiceRegistrar. It also tells who is there: instances send
// heartbeats, and a Watcher keeps the list. It knows nothing of the services.
// Interceptors and stats handlers of the gRPC ecosystem work on both sides; the
// battery of bustest runs over this carrier and over gRPC itself. docs/wire.md
// says what follows in full, for implementations in other languages.
//
// # Addresses
//
// T is the tenant, all tokens are ours; names from outside never become
// subjects.
//
//	mr.T.rpc.<pool>.<m>.<Method>
//	                            OPEN to a pool, queue group "w": to instances
//	                            that have the manifest with the hash m, or for
//	                            "_" to any
//	mr.T.i.<instance>.open      OPEN to one instance
//	mr.T.i.<instance>.open-<m>  the same, if it has the manifest
//	mr.T.i.<instance>.c<call>   frames to the instance that runs a call
//	mr.T.i.<instance>.ping      "are you there?", answered at once
//	mr.T.i.<instance>.fence     "what became of my OPEN?"
//	mr.T.e.<client>.c<call>     frames to the caller of a call
//	mr.T.e.<client>.ev.<session>.<stream>.<round>
//	                            events of a resumable call
//	mr.T.cap.<pool>.<m>         offers of free slots, queue group "edges"
//	mr.T.want.<pool>.<m>        "somebody waits for a slot"
//	mr.T.hb.<instance>          heartbeats
//	mr.T.hello                  asks everybody for a heartbeat
//	mr.T.man.<hash>             a manifest by its hash, queue group "m"
//	mr.T.<topic>.<hash>         news, see Server.Broadcast
//	mr.T.x.<topic>              announcements, see Client.Announce
//
// A client has one subscription for all its calls (and one for each pool, or
// manifest of it, while calls to it wait) and an instance a few, so a call
// subscribes nothing. Only the OPEN goes to a queue group; every later frame goes
// to one address. The address of the caller is the NATS reply
// subject of the OPEN, so an instance needs no right but to answer. Nothing
// else publishes to such an address, and neither side publishes to an address
// that a peer names outside of the form above.
//
// # Frames
//
// One NATS message is one Frame (millrace/bus/v1/frame.proto).
//
//	caller to instance: OPEN DATA HALF_CLOSE CANCEL WINDOW FENCE
//	instance to caller: ACCEPT BUSY HEADERS DATA END WINDOW FENCED OFFER
//
// OPEN, DATA and HALF_CLOSE are numbered from 1 by the caller; ACCEPT, HEADERS,
// DATA and END from 1 by the instance. NATS keeps the order of a publisher but
// may lose messages, so a number that is not the next one ends the call with
// Unavailable and reason FRAME_LOST; nothing is delivered past the gap. The
// number of the END thereby counts the messages before it.
//
// OPEN carries the method, the metadata, the time left, the window for the
// answer and the first message; with FlagHalf there is no other. Then ACCEPT or
// BUSY comes from whoever got it, ACCEPT before any code of the service has
// visible effects on the wire. ACCEPT may be joined with the frame after it
// (FlagAccepted): an instance waits 5 ms for the result, and 1 ms with the first
// message of a stream, so a short unary call and a stream of one message cost
// one NATS message each way. A request in more than one frame is accepted at
// once, as the rest needs the address in the ACCEPT. END is the last frame and
// carries the google.rpc.Status with details, the trailers, the headers if they
// were not sent before, and (FlagMessage) the last message if there is room.
//
// Deadlines travel as time left, never as a time of day. A context without a
// deadline gets 5 minutes, none is longer than an hour. CANCEL makes the context
// of the handler end; when the caller leaves before the ACCEPT, its address is
// not known yet, and CANCEL is the answer to the ACCEPT when it comes, as to
// every frame of a call that is over.
//
// # Windows
//
// Each direction of a call has a window in bytes, 256 KiB: OPEN and ACCEPT
// grant it and WINDOW returns what was read, when half of it has come together.
// A frame costs its payload and 64 bytes, and may be sent while anything is left
// of the window. Messages larger than a chunk (128 KiB, and at most half of the
// max_payload of the server) are cut; all parts but the last have FlagMore.
// While somebody waits for a message its parts are returned as they come, and
// otherwise when it is read. So a message may be larger than the window, and a
// reader that stalls holds no more than a window. The goroutines that read from
// NATS only put frames into the queues that the windows bound, and never wait
// for a call.
//
// # When it does not work
//
// Nobody listens (NATS says so at once): Unavailable, NO_RESPONDERS. When the
// caller knows the pool the OPEN is repeated for 50 ms, since news of a
// subscription takes a moment in a cluster; with grpc.WaitForReady, until the
// deadline.
//
// BUSY means that the instance has no free slot, or drains, or cannot tell
// whether the OPEN is older than the accept budget in it: it did not take the
// call and never will. The OPEN is repeated twice at once; then the call waits,
// with others of its pool, until an instance offers a free slot, for at most the
// wait budget: ResourceExhausted, OVERLOADED, with the time that it is likely to
// take (RetryAfter), which is also said at once to a call that would wait too
// long. Principals and their sessions take turns, see Fair. An instance makes
// offers only while somebody waits, so a call costs nothing more as long as there
// are free slots. What calls wait for may be a limit for their sort of calls
// (ServerConfig.Admit); then they hold up nobody else.
//
// No answer within the accept budget: the client asks every instance that may
// have got the OPEN (ClientConfig.Members knows them). If all of them say that
// they have not run the call and never will, it is offered again, at most twice:
// then Unavailable, NOT_STARTED. Otherwise Unavailable, NOT_ACCEPTED; the call may
// have started. docs/wire.md says why that can be relied on. The instance is gone (NATS says so when something is sent to
// it, and the Watcher when it is silent or a new epoch began): Unavailable,
// WORKER_LOST. The connection of the caller is lost: its calls end at once with
// FRAME_LOST or NOT_ACCEPTED, and new ones fail with DISCONNECTED, since nothing
// is buffered for later; when it is back, the instances hear of the calls that
// ended. The connection of the instance is lost: it ends its
// calls, begins a new epoch when it is back, and tells the callers. The caller
// is gone: NATS says so with the next message, and the handler is cancelled; a
// call that sends nothing asks every 5 s.
//
// Messages are dropped because nobody read them in time, which the windows
// should prevent: as if the connection had been lost, and the log says so. The
// server closes a connection for good, as the client library takes it: everything
// ends, and Run returns an error.
//
// Only after NO_RESPONDERS, DISCONNECTED, OVERLOADED and NOT_STARTED it is certain
// that no handler ran.
//
// # Resumable calls
//
// The OPEN of a resumable call names a second subject of the caller, its events,
// for the messages and the end. A stream of JetStream may capture that; the bus
// does not wait for it and does not know, but then anybody can follow the call
// from any point, while it runs and for a while afterwards, see Client.Follow. A
// short call sends nothing there: for the first 500 ms an END, even with a
// message, goes to the reply subject.
//
// When the caller of such a call is gone, which the reply subject tells, the
// call goes on without it: nothing bounds what it sends but its deadline and the
// 4 MiB that are sent to the events of a call. A caller that cannot read on, as
// it stops or was disconnected, says CANCEL with FlagDetach, and its call ends on its
// side with GOES_ON.
//
// # Heartbeats
//
// An instance sends one every second, give or take a tenth, at once when its
// state or manifest changed, and within 250 ms after a hello. A Watcher that has
// heard nothing for 1.25 s asks directly: no responders, or twice no answer
// within 300 ms while its connection was not slow and no frame came, and the
// instance counts as gone until it is heard of again. An instance that leaves says DRAINING
// and answers BUSY for 300 ms, unsubscribes, lets calls finish for its grace
// period, ends the rest with Unavailable and DRAINING, and says GONE.
package bus
