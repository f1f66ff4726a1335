package bus

import (
	"sync"
	"time"
)

// delayQueue calls a function for each item a fixed time after it was added,
// with one timer for all of them.
type delayQueue[T any] struct {
	delay time.Duration
	fire  func(T)

	mu     sync.Mutex
	items  []delayed[T] // in order of due time, since the delay is fixed
	head   int
	timer  *time.Timer // nil until the first item
	armed  bool
	busy   sync.WaitGroup
	closed bool
}

type delayed[T any] struct {
	due  time.Time
	item T
}

func (q *delayQueue[T]) init(delay time.Duration, fire func(T)) {
	q.delay, q.fire = delay, fire
}

// add schedules item.
func (q *delayQueue[T]) add(item T) {
	due := time.Now().Add(q.delay)
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return
	}
	q.items = append(q.items, delayed[T]{due, item})
	if !q.armed {
		q.armLocked(q.delay)
	}
}

func (q *delayQueue[T]) armLocked(d time.Duration) {
	q.armed = true
	if q.timer == nil {
		q.timer = time.AfterFunc(d, q.run)
	} else {
		q.timer.Reset(d)
	}
}

// run is called by the timer. armed stays true while it works, so it never
// runs twice at a time.
func (q *delayQueue[T]) run() {
	q.mu.Lock()
	if q.closed {
		q.mu.Unlock()
		return
	}
	q.busy.Add(1)
	defer q.busy.Done()
	now := time.Now()
	n := q.head
	for n < len(q.items) && !q.items[n].due.After(now) {
		n++
	}
	due := make([]T, 0, n-q.head)
	for i := q.head; i < n; i++ {
		due = append(due, q.items[i].item)
		q.items[i] = delayed[T]{}
	}
	q.head = n
	if q.head*2 >= len(q.items) {
		// At least half is spent: moving the rest is paid for.
		rest := copy(q.items, q.items[q.head:])
		clear(q.items[rest:])
		q.items, q.head = q.items[:rest], 0
	}
	q.mu.Unlock()

	for _, item := range due {
		q.fire(item)
	}

	q.mu.Lock()
	defer q.mu.Unlock()
	if q.head == len(q.items) || q.closed {
		q.armed = false
		return
	}
	q.armLocked(time.Until(q.items[q.head].due))
}

// close drops what is left and returns when nothing runs any more.
func (q *delayQueue[T]) close() {
	q.mu.Lock()
	q.closed = true
	q.items = nil
	q.head = 0
	if q.timer != nil {
		q.timer.Stop()
	}
	q.mu.Unlock()
	q.busy.Wait()
}
