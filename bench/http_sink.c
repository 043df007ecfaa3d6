/* A destination that takes everything: HTTP/1.1 with keep-alive, bodies by Content-Length or in
 * chunks, every request answered with 200 and nothing in it. A thread for each connection.
 *
 *   http_sink [PORT]      listens on 127.0.0.1, prints its port, and ends when its standard input
 *                         does, so that it never outlives who started it
 *   GET /counters         {"requests": …, "items": …, "bytes": …} of all requests with a body;
 *                         an item is a line, whether it ends in a line break or not
 *
 * What it can't do: anything else. It trusts its only client, and leaves what it can't read. */

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

#define BUFFER_BYTES (256 * 1024)
#define HEAD_BYTES_MAX (64 * 1024)

static atomic_ullong requests, items, bytes;

struct connection {
    int fd;
    size_t from, to; /* what was received and not used yet */
    char buffer[BUFFER_BYTES + 1];
};

struct body {
    unsigned long long bytes, lines;
    char last;
};

static int receive(struct connection *c)
{
    if (c->from == c->to)
        c->from = c->to = 0;
    if (c->to == BUFFER_BYTES) {
        memmove(c->buffer, c->buffer + c->from, c->to - c->from);
        c->to -= c->from;
        c->from = 0;
        if (c->to == BUFFER_BYTES)
            return 0;
    }
    ssize_t got;
    do
        got = recv(c->fd, c->buffer + c->to, BUFFER_BYTES - c->to, 0);
    while (got < 0 && errno == EINTR);
    if (got <= 0)
        return 0;
    c->to += (size_t)got;
    c->buffer[c->to] = 0;
    return 1;
}

/* The next line or head that ends in `end`, taken; NULL if the connection ended before. */
static char *take_until(struct connection *c, const char *end, size_t bytes_max)
{
    size_t length = strlen(end), searched = 0;
    for (;;) {
        size_t have = c->to - c->from;
        size_t back = searched < length ? 0 : searched - length;
        char *start = c->buffer + c->from;
        char *found = have > back ? memmem(start + back, have - back, end, length) : NULL;
        if (found) {
            *found = 0;
            c->from += (size_t)(found - start) + length;
            return start;
        }
        searched = have;
        if (have > bytes_max || !receive(c))
            return NULL;
    }
}

static int take_bytes(struct connection *c, unsigned long long left, struct body *body)
{
    while (left) {
        if (c->from == c->to && !receive(c))
            return 0;
        size_t have = c->to - c->from;
        if (have > left)
            have = (size_t)left;
        char *at = c->buffer + c->from, *end = at + have;
        body->last = end[-1];
        body->bytes += have;
        while ((at = memchr(at, '\n', (size_t)(end - at)))) {
            body->lines++;
            at++;
        }
        c->from += have;
        left -= have;
    }
    return 1;
}

static int take_chunks(struct connection *c, struct body *body)
{
    for (;;) {
        char *line = take_until(c, "\r\n", HEAD_BYTES_MAX);
        if (!line)
            return 0;
        unsigned long long size = strtoull(line, NULL, 16);
        if (size && !take_bytes(c, size, body))
            return 0;
        /* Behind a chunk its end; behind the last one trailers, and an empty line. */
        do
            line = take_until(c, "\r\n", HEAD_BYTES_MAX);
        while (!size && line && *line);
        if (!line || !size)
            return line != NULL;
    }
}

/* A header's value; `head` is everything between the request line and the empty line. */
static const char *header(const char *head, const char *name)
{
    size_t length = strlen(name);
    for (const char *line = head; (line = strstr(line, "\r\n"));) {
        line += 2;
        if (!strncasecmp(line, name, length) && line[length] == ':') {
            line += length + 1;
            return line + strspn(line, " \t");
        }
    }
    return NULL;
}

static int answer(int fd, const char *text, size_t length)
{
    while (length) {
        ssize_t sent = send(fd, text, length, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR)
            continue;
        if (sent <= 0)
            return 0;
        text += sent;
        length -= (size_t)sent;
    }
    return 1;
}

static int answer_counters(int fd)
{
    char json[200], text[400];
    int size = snprintf(json, sizeof json, "{\"requests\": %llu, \"items\": %llu, \"bytes\": %llu}",
                        (unsigned long long)requests, (unsigned long long)items,
                        (unsigned long long)bytes);
    int length = snprintf(text, sizeof text,
                          "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
                          "Content-Length: %d\r\n\r\n%s", size, json);
    return answer(fd, text, (size_t)length);
}

static int serve_request(struct connection *c)
{
    static const char ok[] = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
    char *head = take_until(c, "\r\n\r\n", HEAD_BYTES_MAX);
    if (!head)
        return 0;
    if (!strncmp(head, "GET /counters ", 14))
        return answer_counters(c->fd);
    struct body body = {0, 0, '\n'};
    const char *length = header(head, "Content-Length");
    const char *coding = header(head, "Transfer-Encoding");
    if (coding && !strncasecmp(coding, "chunked", 7)) {
        if (!take_chunks(c, &body))
            return 0;
    } else if (length && !take_bytes(c, strtoull(length, NULL, 10), &body)) {
        return 0;
    }
    /* Counted before it is answered: whoever has the answer finds itself counted. */
    requests++;
    items += body.lines + (body.last != '\n');
    bytes += body.bytes;
    return answer(c->fd, ok, sizeof ok - 1);
}

static void *serve(void *argument)
{
    struct connection *c = argument;
    while (serve_request(c))
        ;
    close(c->fd);
    free(c);
    return NULL;
}

static void *end_with_input(void *argument)
{
    char byte;
    (void)argument;
    while (read(0, &byte, 1) > 0)
        ;
    _exit(0);
}

static int fail(const char *what)
{
    perror(what);
    return 1;
}

int main(int count, char **arguments)
{
    int on = 1, listener = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in place = {.sin_family = AF_INET};
    socklen_t size = sizeof place;
    pthread_t thread;

    signal(SIGPIPE, SIG_IGN);
    place.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    place.sin_port = htons((unsigned short)(count > 1 ? atoi(arguments[1]) : 0));
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (listener < 0 || bind(listener, (struct sockaddr *)&place, sizeof place) < 0)
        return fail("bind");
    if (listen(listener, 128) < 0 || getsockname(listener, (struct sockaddr *)&place, &size) < 0)
        return fail("listen");
    printf("%d\n", ntohs(place.sin_port));
    fflush(stdout);
    if (pthread_create(&thread, NULL, end_with_input, NULL))
        return fail("thread");
    for (;;) {
        int fd = accept(listener, NULL, NULL);
        if (fd < 0)
            continue;
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        struct connection *c = calloc(1, sizeof *c);
        if (!c)
            return fail("memory");
        c->fd = fd;
        if (pthread_create(&thread, NULL, serve, c))
            return fail("thread");
        pthread_detach(thread);
    }
}
