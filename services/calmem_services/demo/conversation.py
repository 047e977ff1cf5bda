"""What Mei and her assistant say to each other over five weeks. Lines alternate: user first, then assistant."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime


@dataclass(frozen=True, kw_only=True)
class Talk:
    """One session. `lines`: user and assistant in turn."""

    session_id: str
    begins: datetime
    lines: tuple[str, ...]


KITCHEN = """\
Hi! I finally signed the lease for the tea shop on Harbour Street. I need help planning the kitchen.
Congratulations, Mei! Tell me the size of the room and what has to go in it.
It is 14 square metres, long and narrow, with one window to the yard.
Then a single line of counters along the long wall works best. Do you bake on site or only brew?
Only brewing, plus a small oven for scones. My aunt's recipe.
A 60 cm oven will do. Put it at the yard end, near the window, because of the heat.
Good point. By the way, I'm allergic to walnuts, so no walnut wood oil on the counters please.
Noted: no walnut oil. Beech with a linseed finish is food safe and cheap.
Beech it is. What about water? The pipes are old.
Have the hardness measured. For green tea you want soft water, under 80 mg of calcium carbonate per litre.
The landlord says it is 210.
That is hard water. A reverse osmosis filter with remineralisation would solve it.
What would that cost me?
Between 600 and 900 euros installed, and a cartridge of about 70 euros every half year.
OK. I'd rather save on the furniture then.
Second-hand chairs from closing cafés are often good. Check the joints.
My brother Tao can fix wobbly chairs, he is a carpenter.
Then buy solid wood, he can reglue that. Avoid plywood seats.
The inspector comes on the 20th. What will she look at?
Hand basin separate from the sink, washable walls to two metres, and a grease trap if you fry.
No frying. So basin and walls.
And a thermometer log for the fridge. They always ask for it.
I'll put a notebook next to it.
Better a printed sheet with date, time, temperature and initials.
Fine. Opening is planned for the first Saturday in November.
That leaves you five weeks. The filter should be ordered this week.
I'll order it tonight from Aquaduct.
Ask them for the installation manual in advance, the landlord may want to see it.
Will do. Thanks, this was useful!
You're welcome. Good luck with the inspector.
"""

CHENGDU = """\
I'm flying to Chengdu next week to choose teas for the shop. Can you help me prepare?
Of course. Which growers do you want to see?
Mostly Mengding mountain near Ya'an. 我想找蒙顶甘露的小茶农。
可以。蒙顶山的茶农大多在名山区，三月和四月最忙，现在去他们有时间聊。
现在是十月，还能喝到今年的春茶吗？
能，春茶冷藏得好的话到年底都新鲜。记得问他们是不是冷库存的。
好的。我叔叔住在成都，他的电话我忘了记。
把电话存进通讯录吧，到了以后先联系他。
他叫周建国，住在武侯区，喜欢下象棋。
记住了：周建国，武侯区，喜欢下象棋。带一副好棋子给他做礼物怎么样？
好主意！In English again: how do I pay small growers there?
Mobile payment is normal. As a foreign buyer you may need cash or a bank transfer with an invoice.
I keep my Chinese bank card, so transfer is fine.
Then ask for a fapiao, the official invoice, or customs will value the tea themselves.
How much may I import without a phytosanitary certificate?
For commercial quantities you need one. Below 2 kg in your luggage it is usually personal use.
I want about 40 kg.
Then ship it by air freight with a certificate. The grower's cooperative can apply for it.
What else should I check about the tea itself?
Pesticide residue tests for the European limits. Ask for the report by batch number.
I'll insist on that. 酒店我订了锦江边的，三个晚上。
锦江边晚上散步很舒服，离文殊院也不远。
文殊院有茶馆吧？
有，露天的盖碗茶，十几块钱一位，可以坐一下午。
太好了，我就喜欢那种地方。
那里下午人多，上午十点以前去最安静。
谢谢！我回来再跟你说。
一路顺风，回来告诉我你选了哪家。
"""

OPENING = """\
I'm back from Chengdu. I chose the Liang family's Ganlu, 25 kg, and 12 kg of jasmine tea.
Wonderful. Was the tea kept in cold storage?
Yes, at four degrees. The residue report is fine too, batch LJ-2407.
Keep that report with the customs papers.
The filter from Aquaduct arrived damaged. Order SF123456789, the housing is cracked.
Take photos today and write to them with the order number. Damage in transit must be reported within 7 days.
Done. They send a new housing by express.
Good. Do not let the plumber start before it is there.
The plumber comes on Thursday at eight.
Then ask Aquaduct for the tracking number, so you can move him if it is late.
They sent it: DH-5520-7781. It should be here on Wednesday.
That fits. Anything else before the opening?
The inspector passed everything except the wall behind the basin.
Tiles or a stainless panel up to two metres solve that in a day.
Tao will put up a steel panel on Sunday.
Great, and send the inspector a photo, many accept that.
She did! She answered within an hour.
Then the kitchen is done. Congratulations!
Next worry: my knee. I started running in the park and it hurts on the outside.
Could be the iliotibial band. Rest a few days, then shorter runs on soft ground.
I wanted to run the ten kilometres in spring.
You have time. Begin with three times twenty minutes a week.
Mornings only, the shop opens at ten.
Before opening then: Tuesday, Thursday and Sunday at seven.
OK. For the menu: I prefer short descriptions, one line per tea, no poetry.
Understood: one plain line for each tea.
"""

INVENTORY = """\
The shop runs! Now I want a small program to track the stock. Can we plan it together?
Gladly. What should it know?
Teas with batch, weight in grams, supplier and best-before date.
And what changes it: deliveries, sales, tastings, loss. I would keep a journal of movements, not only a number.
So the stock is the sum of the movements?
Exactly. Then every number can be explained later.
Which database? My nephew says MongoDB.
For sums and dates a relational one is simpler. SQLite is one file and needs no server.
Decision then: we use SQLite with a movements table, and weights are whole grams, never decimals.
Agreed: SQLite, a movements table, weights in whole grams as integers.
And nothing is ever deleted, only reversed.
So a wrong entry gets a counter entry. I will write it down like that.
Now the till. It is a tablet with the CashLotus app.
Does CashLotus export sales?
Yes, a CSV every night at 23:30 into a folder.
Then a small job can read that file after midnight and book the sales as movements.
The columns are article, pieces, grams, price and time.
Use article and time together as the key, so that reading one file twice books nothing twice.
Smart. What language?
Python is enough. One script for import, one small page for counting.
Counting on the tablet?
Yes, a page with large buttons. You weigh a tin and type the grams.
The scale is a Kern PCB, it has a serial port.
Then it could fill in the weight by itself. But type it first, wire it later.
Right, simple first. Who can see the page?
Only your own network. Put a password on it anyway.
My staff are Lena and Amir. Lena does mornings, Amir evenings.
Give each a name in the program, so the journal shows who counted.
Lena always rounds to 50 grams.
The journal will show it. Ask her to type what the scale says.
Ha, yes. What about backups?
Copy the SQLite file every night to a second disk, with its date in the name, and keep thirty.
And once a month I try to restore one.
That is the part most people forget. Good.
Let's talk about the counting page. Big buttons, you said.
One button for each tea, sorted by shelf position, and a keypad below.
Shelf position changes when we rearrange.
Then let the order be dragged, and stored per tablet.
Is dragging hard to build?
A plain list with up and down arrows is easier and works with wet hands.
Arrows then. Wet hands are real here.
Make them at least 12 mm high.
What happens when the tablet loses the network?
The page keeps the entry and sends it again when the network is back. Each entry has its own number, so it counts once.
Nice. And a warning when a tea runs low?
Set a minimum for each tea. Below it, the tea appears in red on the first page.
For Ganlu the minimum is 1500 grams.
Noted, 1,500 grams for Ganlu.
For jasmine 800.
And 800 grams for jasmine.
I think that is all for the first version.
I will summarise the list of screens tomorrow.
"""


def _talk(session_id: str, begins: datetime, script: str) -> Talk:
    return Talk(session_id=session_id, begins=begins, lines=tuple(script.splitlines()))


TALKS = (
    _talk("kitchen", datetime(2025, 9, 27, 9, 0, tzinfo=UTC), KITCHEN),
    _talk("chengdu", datetime(2025, 10, 9, 18, 30, tzinfo=UTC), CHENGDU),
    _talk("opening", datetime(2025, 10, 21, 7, 15, tzinfo=UTC), OPENING),
    _talk("inventory", datetime(2025, 11, 4, 20, 0, tzinfo=UTC), INVENTORY),
)
