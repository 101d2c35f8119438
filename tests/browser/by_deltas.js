// Whether a model that followed deltas has what one has that took the last picture: what differs, one line each.
(({ first, deltas, last }) => import("/static/model.js").then(({ Model }) => {
  const [followed, fresh] = [new Model(), new Model()];
  followed.take(first);
  for (const delta of deltas) followed.apply(delta);
  fresh.take(last);
  const sorted = (value) =>
    value instanceof Map ? [...value].map(([key, each]) => [key, sorted(each)]).sort((a, b) => (a[0] < b[0] ? -1 : 1))
    : Array.isArray(value) ? value.map((each) => JSON.stringify(each)).sort()
    : JSON.stringify(value);
  const shown = ({ nodes, gpus, pods, waiting, events, queues, gpusOf, podsOn, holders, named, waitingByName, values }) =>
    [nodes, gpus, pods, waiting, events, queues, gpusOf, podsOn, holders, named, waitingByName, ...Object.values(values)]
      .map((map) => JSON.stringify(sorted(map)));
  const [one, other] = [shown(followed), shown(fresh)];
  return one.map((text, at) => (text === other[at] ? "" : `${at}: ${text.slice(0, 300)} | ${other[at].slice(0, 300)}`)).filter(Boolean);
}))
