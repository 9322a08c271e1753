/* An exactly-once pass-through in C, with the librdkafka that confluent_kafka ships: an upper limit for its clients.
 *
 * usage: pass_through BOOTSTRAP DATA OUT PARTITIONS BATCH RECORDS
 *
 * Like the joiner, it has one consumer and one transaction for each partition and batch. The transactions of a batch
 * run in parallel while the next batch is read. The wheel contains no header, so the few declarations from rdkafka.h
 * that this program needs are repeated here.
 */
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>

typedef struct rd_kafka_s rd_kafka_t;
typedef struct rd_kafka_conf_s rd_kafka_conf_t;
typedef struct rd_kafka_topic_s rd_kafka_topic_t;
typedef struct rd_kafka_queue_s rd_kafka_queue_t;
typedef struct rd_kafka_error_s rd_kafka_error_t;
typedef struct rd_kafka_list_s rd_kafka_list_t; /* rd_kafka_topic_partition_list_t */
typedef struct rd_kafka_group_s rd_kafka_group_t; /* rd_kafka_consumer_group_metadata_t */

typedef struct {
  int32_t error;
  rd_kafka_topic_t *topic;
  int32_t partition;
  void *payload;
  size_t length;
  void *key;
  size_t key_length;
  int64_t offset;
  void *opaque;
} rd_kafka_message_t;

typedef struct {
  char *topic;
  int32_t partition;
  int64_t offset;
} rd_kafka_place_t; /* the beginning of rd_kafka_topic_partition_t */

extern rd_kafka_conf_t *rd_kafka_conf_new(void);
extern int rd_kafka_conf_set(rd_kafka_conf_t *, const char *, const char *, char *, size_t);
extern rd_kafka_t *rd_kafka_new(int, rd_kafka_conf_t *, char *, size_t);
extern int rd_kafka_poll_set_consumer(rd_kafka_t *);
extern rd_kafka_queue_t *rd_kafka_queue_get_consumer(rd_kafka_t *);
extern rd_kafka_list_t *rd_kafka_topic_partition_list_new(int);
extern rd_kafka_place_t *rd_kafka_topic_partition_list_add(rd_kafka_list_t *, const char *, int32_t);
extern void rd_kafka_topic_partition_list_destroy(rd_kafka_list_t *);
extern int rd_kafka_assign(rd_kafka_t *, const rd_kafka_list_t *);
extern ssize_t rd_kafka_consume_batch_queue(rd_kafka_queue_t *, int, rd_kafka_message_t **, size_t);
extern void rd_kafka_message_destroy(rd_kafka_message_t *);
extern rd_kafka_group_t *rd_kafka_consumer_group_metadata(rd_kafka_t *);
extern rd_kafka_topic_t *rd_kafka_topic_new(rd_kafka_t *, const char *, void *);
extern int rd_kafka_produce_batch(rd_kafka_topic_t *, int32_t, int, rd_kafka_message_t *, int);
extern int rd_kafka_poll(rd_kafka_t *, int);
extern int rd_kafka_flush(rd_kafka_t *, int);
extern rd_kafka_error_t *rd_kafka_init_transactions(rd_kafka_t *, int);
extern rd_kafka_error_t *rd_kafka_begin_transaction(rd_kafka_t *);
extern rd_kafka_error_t *rd_kafka_send_offsets_to_transaction(rd_kafka_t *, const rd_kafka_list_t *,
                                                              const rd_kafka_group_t *, int);
extern rd_kafka_error_t *rd_kafka_commit_transaction(rd_kafka_t *, int);
extern const char *rd_kafka_error_string(const rd_kafka_error_t *);

enum { PRODUCER = 0, CONSUMER = 1, COPY = 2, WAIT_MS = 20, FULL_WAIT_MS = 1, LIMIT_MS = 30000, QUEUE_FULL = -184 };

/* Like the joiner, it gives a producer only what fits into one request, because the producer polls without pausing while
 * more is due. Small messages count as larger, because a request holds at most 10,000. */
enum { REQUEST_BYTES = 950000, OVERHEAD_BYTES = 40, MESSAGE_BYTES_MIN = 95 };

static void fail(const char *what) {
  fprintf(stderr, "pass_through: %s\n", what);
  exit(1);
}

static void check(rd_kafka_error_t *error) {
  if (error) fail(rd_kafka_error_string(error));
}

static void *room(size_t size) {
  void *found = calloc(1, size);
  if (!found) fail("out of memory");
  return found;
}

/* Settings are alternating names and values, followed by NULL. */
static rd_kafka_t *client(int kind, const char *bootstrap, ...) {
  char why[512];
  rd_kafka_conf_t *conf = rd_kafka_conf_new();
  if (rd_kafka_conf_set(conf, "bootstrap.servers", bootstrap, why, sizeof why)) fail(why);
  va_list settings;
  va_start(settings, bootstrap);
  for (const char *name = va_arg(settings, const char *); name; name = va_arg(settings, const char *))
    if (rd_kafka_conf_set(conf, name, va_arg(settings, const char *), why, sizeof why)) fail(why);
  va_end(settings);
  rd_kafka_t *made = rd_kafka_new(kind, conf, why, sizeof why);
  if (!made) fail(why);
  return made;
}

typedef struct {
  pthread_t thread;
  pthread_mutex_t lock;
  pthread_cond_t change;
  int is_busy, is_over;
  const char *data;
  int32_t number;
  rd_kafka_t *producer;
  rd_kafka_topic_t *out;
  rd_kafka_group_t *group;
  rd_kafka_message_t **read, *written;
  int count;
} partition_t;

/* Passes messages to the producer, in order. */
static void produce(partition_t *one, rd_kafka_message_t *next, int left) {
  for (;;) {
    int done = rd_kafka_produce_batch(one->out, one->number, COPY, next, left);
    if (done == left) break;
    int refused = 0;
    for (int at = 0; at < left; at++) {
      if (!next[at].error) continue;
      if (next[at].error != QUEUE_FULL) fail("a message was refused");
      next[refused] = next[at], next[refused++].error = 0;
    }
    left = refused;
    rd_kafka_poll(one->producer, FULL_WAIT_MS);
  }
}

/* Copies the messages that were read to the output, in one transaction with their offsets. */
static void commit(partition_t *one) {
  check(rd_kafka_begin_transaction(one->producer));
  rd_kafka_list_t *offsets = rd_kafka_topic_partition_list_new(1);
  rd_kafka_topic_partition_list_add(offsets, one->data, one->number)->offset = one->read[one->count - 1]->offset + 1;
  check(rd_kafka_send_offsets_to_transaction(one->producer, offsets, one->group, LIMIT_MS));
  rd_kafka_topic_partition_list_destroy(offsets);
  rd_kafka_message_t *next = one->written;
  for (int at = 0; at < one->count; at++) {
    memset(&next[at], 0, sizeof next[at]);
    next[at].payload = one->read[at]->payload, next[at].length = one->read[at]->length;
    next[at].key = one->read[at]->key, next[at].key_length = one->read[at]->key_length;
  }
  for (int begin = 0, end; begin < one->count; begin = end) {
    size_t size = 0;
    for (end = begin; end < one->count; end++) {
      size_t own = next[end].length + next[end].key_length + OVERHEAD_BYTES;
      size += own > MESSAGE_BYTES_MIN ? own : MESSAGE_BYTES_MIN;
      if (size > REQUEST_BYTES && end > begin) break;
    }
    produce(one, next + begin, end - begin);
    if (end < one->count && rd_kafka_flush(one->producer, LIMIT_MS)) fail("the messages were not acknowledged in time");
  }
  for (int at = 0; at < one->count; at++) rd_kafka_message_destroy(one->read[at]);
  rd_kafka_poll(one->producer, 0);
  check(rd_kafka_commit_transaction(one->producer, LIMIT_MS));
}

static void *serve(void *given) {
  partition_t *one = given;
  pthread_mutex_lock(&one->lock);
  for (;;) {
    while (!one->is_busy && !one->is_over) pthread_cond_wait(&one->change, &one->lock);
    if (!one->is_busy) break;
    pthread_mutex_unlock(&one->lock);
    commit(one);
    pthread_mutex_lock(&one->lock);
    one->is_busy = 0;
    pthread_cond_signal(&one->change);
  }
  pthread_mutex_unlock(&one->lock);
  return NULL;
}

static void wait_until_idle(partition_t *one) {
  pthread_mutex_lock(&one->lock);
  while (one->is_busy) pthread_cond_wait(&one->change, &one->lock);
  pthread_mutex_unlock(&one->lock);
}

int main(int argc, char **argv) {
  if (argc != 7) fail("usage: pass_through BOOTSTRAP DATA OUT PARTITIONS BATCH RECORDS");
  const char *bootstrap = argv[1], *data = argv[2], *out = argv[3];
  int partitions = atoi(argv[4]), batch = atoi(argv[5]);
  long records = atol(argv[6]);
  rd_kafka_t *consumer = client(CONSUMER, bootstrap, "group.id", out, "enable.auto.commit", "false",
                                "enable.auto.offset.store", "false", "auto.offset.reset", "error", "isolation.level",
                                "read_committed", "check.crcs", "true", "queued.max.messages.kbytes", "65536",
                                "fetch.queue.backoff.ms", "2", NULL);
  rd_kafka_poll_set_consumer(consumer);
  rd_kafka_queue_t *queue = rd_kafka_queue_get_consumer(consumer);
  partition_t *all = room(partitions * sizeof *all);
  rd_kafka_list_t *places = rd_kafka_topic_partition_list_new(partitions);
  for (int number = 0; number < partitions; number++) {
    partition_t *one = &all[number];
    char id[512];
    snprintf(id, sizeof id, "%s-%d", out, number);
    one->data = data, one->number = number;
    one->producer = client(PRODUCER, bootstrap, "transactional.id", id, "queue.buffering.backpressure.threshold", "1",
                           "retry.backoff.ms", "2", "retry.backoff.max.ms", "4", "linger.ms", "5", "compression.type",
                           "lz4", NULL);
    check(rd_kafka_init_transactions(one->producer, LIMIT_MS));
    one->out = rd_kafka_topic_new(one->producer, out, NULL);
    one->group = rd_kafka_consumer_group_metadata(consumer);
    one->read = room(batch * sizeof *one->read);
    one->written = room(batch * sizeof *one->written);
    pthread_mutex_init(&one->lock, NULL);
    pthread_cond_init(&one->change, NULL);
    rd_kafka_topic_partition_list_add(places, data, number)->offset = 0;
    if (pthread_create(&one->thread, NULL, serve, one)) fail("no thread");
  }
  if (rd_kafka_assign(consumer, places)) fail("assign");
  rd_kafka_message_t **found = room(batch * sizeof *found);
  int *counts = room(partitions * sizeof *counts);
  while (records > 0) {
    ssize_t count = rd_kafka_consume_batch_queue(queue, WAIT_MS, found, batch);
    memset(counts, 0, partitions * sizeof *counts);
    for (ssize_t at = 0; at < count; at++) {
      if (found[at]->error) fail("an error instead of a message");
      partition_t *one = &all[found[at]->partition];
      if (!counts[one->number]) wait_until_idle(one);
      one->read[counts[one->number]++] = found[at];
    }
    records -= count > 0 ? count : 0;
    for (int number = 0; number < partitions; number++) {
      if (!counts[number]) continue;
      partition_t *one = &all[number];
      pthread_mutex_lock(&one->lock);
      one->count = counts[number], one->is_busy = 1;
      pthread_cond_signal(&one->change);
      pthread_mutex_unlock(&one->lock);
    }
  }
  for (int number = 0; number < partitions; number++) {
    partition_t *one = &all[number];
    wait_until_idle(one);
    pthread_mutex_lock(&one->lock);
    one->is_over = 1;
    pthread_cond_signal(&one->change);
    pthread_mutex_unlock(&one->lock);
    pthread_join(one->thread, NULL);
  }
  /* The clients are not closed, because they end with the process. */
  return 0;
}
