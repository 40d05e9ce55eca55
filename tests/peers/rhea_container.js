'use strict';
// rhea, which does what JSON lines on its standard input ask, and tells in JSON lines what happens to it.

const readline = require('readline');
const rhea = require('rhea');
const frames = require('rhea/lib/frames.js');

const sessions = {};
const links = {};
const received = {};
const sent = {};
let connection;

function tell(event, details) {
    process.stdout.write(JSON.stringify({ event, ...details }) + '\n');
}

// Values. What JSON cannot say is an object with '$', the name of a type, and 'v', a value.

function from_json(value) {
    if (Array.isArray(value)) return value.map(from_json);
    if (value === null || typeof value !== 'object') return value;
    if (value.$ === undefined) return map_values(value, from_json);
    if (value.$ === 'buffer') return Buffer.from(value.v, 'base64');
    if (value.$ === 'data') return rhea.message.data_section(Buffer.from(value.v, 'base64'));
    if (value.$ === 'sequence') return rhea.message.sequence_section(from_json(value.v));
    if (value.$ === 'described') return rhea.types.wrap_described(from_json(value.v), value.descriptor);
    if (value.$ === 'array') return rhea.types.wrap_array(value.v, value.code);
    return rhea.types['wrap_' + value.$](from_json(value.v));
}

function to_json(value) {
    if (value === undefined || value === null) return null;
    if (Buffer.isBuffer(value)) return { $: 'buffer', v: value.toString('base64') };
    if (value instanceof Date) return { $: 'date', v: value.getTime() };
    if (Array.isArray(value)) return value.map(to_json);
    if (typeof value !== 'object') return value;
    if (value.descriptor !== undefined) {
        return { $: 'described', descriptor: to_json(value.descriptor.value), v: to_json(value.value) };
    }
    if (value.typecode === 0x75) return { $: 'data', v: to_json(value.content) };
    if (value.typecode === 0x76) return { $: 'sequence', v: to_json(value.content) };
    return map_values(value, to_json);
}

function map_values(object, convert) {
    const result = {};
    for (const key in object) {
        if (typeof object[key] !== 'function') result[key] = convert(object[key]);
    }
    return result;
}

function terminus(value) {
    return value && value.value !== null ? { address: to_json(value.address) } : null;
}

function error_of(endpoint) {
    const error = endpoint && endpoint.error;
    if (!error) return null;
    return { condition: error.condition, description: to_json(error.description), info: to_json(error.info) };
}

// What happens. Whoever connects to us is answered by rhea itself; only where a link leads is ours to say.

rhea.on('connection_open', context => {
    connection = context.connection;
});

for (const role of ['sender', 'receiver']) {
    rhea.on(role + '_open', context => {
        const link = context[role];
        if (!connection.is_server) return;
        links[link.name] = link;
        link.set_source({ address: link.source.address });
        link.set_target({ address: link.target.address });
    });
}

for (const name of ['connection_open', 'connection_error', 'connection_close', 'disconnected', 'protocol_error']) {
    rhea.on(name, context => {
        const remote = context.connection.remote.open || {};
        tell(name, {
            container_id: to_json(remote.container_id),
            properties: to_json(remote.properties),
            error: context.error ? { condition: context.error.condition, description: context.error.message } : null,
        });
    });
}
rhea.on('error', error => tell('error', { error: { condition: error.condition, description: error.message } }));

for (const name of ['session_open', 'session_error', 'session_close']) {
    rhea.on(name, context => tell(name, { session: session_name(context.session), error: error_of(context.session) }));
}

for (const role of ['sender', 'receiver']) {
    for (const what of ['open', 'error', 'close', 'flow', 'draining', 'drained']) {
        rhea.on(role + '_' + what, context => {
            const link = context[role];
            tell(role + '_' + what, {
                link: link.name,
                credit: link.credit,
                source: terminus(link.source),
                target: terminus(link.target),
                max_message_size: to_json(link.max_message_size),
                properties: to_json(link.properties),
                error: error_of(link),
            });
        });
    }
}
rhea.on('sendable', context => tell('sendable', { link: context.sender.name, credit: context.sender.credit }));

rhea.on('message', context => {
    const delivery = context.delivery;
    received[context.receiver.name + delivery.id] = delivery;
    tell('message', {
        link: context.receiver.name,
        credit: context.receiver.credit,
        id: delivery.id,
        tag: delivery.tag.toString(),
        format: delivery.format,
        settled: delivery.remote_settled === true,
        message: to_json(context.message),
    });
});

for (const name of ['accepted', 'rejected', 'released', 'modified', 'settled']) {
    rhea.on(name, context => {
        const link = context.sender || context.receiver;
        const state = context.delivery.remote_state;
        tell(name, {
            link: link.name,
            id: context.delivery.id,
            outcome: state ? state.constructor.composite_type : null,
            error: state ? error_of(state) : null,
            delivery_failed: to_json(state && state.delivery_failed),
            undeliverable_here: to_json(state && state.undeliverable_here),
            message_annotations: to_json(state && state.message_annotations),
        });
    });
}

function session_name(session) {
    return Object.keys(sessions).find(name => sessions[name] === session) || null;
}

// What is asked.

const commands = {
    connect: ({ options }) => {
        connection = rhea.connect({ reconnect: false, tcp_no_delay: true, container_id: 'rhea', ...options });
    },
    listen: ({ options, user, password }) => {
        if (user) {
            rhea.sasl_server_mechanisms.enable_plain((name, secret) => name === user && secret === password);
        }
        const server = rhea.listen({ port: 0, host: '127.0.0.1', tcp_no_delay: true, container_id: 'rhea', ...options });
        server.on('listening', () => tell('listening', { port: server.address().port }));
    },
    close: ({ error }) => connection.close(error),
    begin: ({ session }) => {
        sessions[session] = connection.create_session();
        sessions[session].begin();
    },
    end: ({ session }) => sessions[session].close(),
    sender: ({ link, session, options }) => attach('open_sender', link, session, options),
    receiver: ({ link, session, options }) => attach('open_receiver', link, session, { credit_window: 0, ...options }),
    detach: ({ link }) => links[link].detach(),
    close_link: ({ link }) => links[link].close(),
    send: ({ link, message, format }) => {
        const delivery = links[link].send(from_json(message), undefined, format);
        sent[link + delivery.id] = delivery;
        tell('sent', { link, id: delivery.id });
    },
    flow: ({ link, credit }) => links[link].add_credit(credit),
    echo: ({ link }) => {
        const { session, local, delivery_count, credit } = links[link];
        session.output(frames.flow({
            next_incoming_id: session.incoming.next_transfer_id,
            incoming_window: session.incoming.window,
            next_outgoing_id: session.outgoing.next_transfer_id,
            outgoing_window: session.outgoing.window,
            handle: local.handle,
            delivery_count,
            link_credit: credit,
            echo: true,
        }));
    },
    drain: ({ link }) => links[link].drain_credit(),
    drained: ({ link }) => {
        links[link].set_drained(true);
        connection._register();
    },
    settle: ({ link, id, how, details }) => received[link + id][how](from_json(details)),
    settle_sent: ({ link, id }) => sent[link + id].update(true),
};

function attach(how, link, session, options) {
    links[link] = (session ? sessions[session] : connection)[how]({ name: link, ...from_json(options) });
}

const input = readline.createInterface({ input: process.stdin });
input.on('line', line => {
    const command = JSON.parse(line);
    commands[command.do](command);
});
input.on('close', () => process.exit(0));
